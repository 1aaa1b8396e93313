"""Every keyword of a call against the oracle."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import oracle
import pytest
import tilewise
from oracle import Float32, random

Inputs = tuple[Float32, Float32, Float32]
ROWS, KEYS, HEADS = 19, 23, 4
P, J = oracle.positions(ROWS, KEYS)


def close(got: Any, expected: Any, tolerance: float = 2e-6) -> None:
    np.testing.assert_allclose(np.asarray(got, np.float64), expected, rtol=tolerance, atol=tolerance)


def check(inputs: Inputs, options: dict[str, Any], **expected: Any) -> None:
    """out and lse with `options` are those of the oracle with `expected`."""
    out, lse = tilewise.attention(*inputs, return_lse=True, **options)
    result = oracle.attention(*inputs, **expected)
    close(out, result.out)
    close(lse, result.lse)


def window(left: int | None, right: int | None) -> Any:
    return (True if left is None else P - left <= J) & (True if right is None else P + right >= J)


MASKS: list[tuple[dict[str, Any], Any]] = [
    ({}, True),
    ({"causal": True}, J <= P),
    ({"causal": False, "mask": None}, True),
    ({"causal": True, "top_left": True}, oracle.causal(ROWS, KEYS, top_left=True)),
    ({"window": (5, 2)}, window(5, 2)),
    ({"window": (5, None)}, window(5, None)),
    ({"window": (None, 3)}, window(None, 3)),
    ({"window_left": 4}, window(4, None)),
    ({"window_right": 0}, window(None, 0)),
    ({"attention_chunk": 6}, J >= P // 6 * 6),
]


@pytest.mark.parametrize(("options", "live"), MASKS, ids=str)
def test_masks_by_position(qkv: Inputs, options: dict[str, Any], live: Any) -> None:
    check(qkv, options, live=live)


@pytest.mark.parametrize("shape", [(2, 4, ROWS, KEYS), (1, 4, 1, KEYS), (4, ROWS, KEYS), (ROWS, KEYS), (KEYS,)])
def test_mask_repeats_along_extents_of_one(qkv: Inputs, rng: np.random.Generator, shape: tuple[int, ...]) -> None:
    mask = rng.random(shape) < 0.7
    check(qkv, {"mask": mask}, live=mask)


def test_mask_tail(qkv: Inputs, rng: np.random.Generator) -> None:
    mask = rng.random((ROWS, 7)) < 0.5
    live = np.concatenate([np.ones((ROWS, KEYS - 7), bool), mask], axis=1)
    check(qkv, {"mask": mask, "mask_tail": True}, live=live)


def test_key_intervals(qkv: Inputs, rng: np.random.Generator) -> None:
    begin = rng.integers(0, 10, (2, HEADS, ROWS), dtype=np.int32)
    end = rng.integers(10, KEYS + 1, (1, ROWS), dtype=np.int32)
    live = (begin[..., None] <= J) & (end[..., None] > J)
    check(qkv, {"key_begin": begin, "key_end": end}, live=live)


def test_positions(qkv: Inputs, rng: np.random.Generator) -> None:
    rows = rng.integers(0, 60, ROWS, dtype=np.int32)
    keys = np.sort(rng.integers(0, 60, KEYS, dtype=np.int32))
    check(qkv, {"q_positions": rows, "k_positions": keys, "causal": True}, live=keys[None, :] <= rows[:, None])


def test_row_without_live_key_is_zero(qkv: Inputs) -> None:
    mask = np.ones((ROWS, KEYS), bool)
    mask[3] = False
    out, lse = tilewise.attention(*qkv, mask=mask, return_lse=True)
    assert not out[:, 3].any()
    assert np.isneginf(lse[:, :, 3]).all()
    check(qkv, {"mask": mask}, live=mask)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_bias_types(qkv: Inputs, rng: np.random.Generator, dtype: Any) -> None:
    bias = random(rng, HEADS, ROWS, KEYS).astype(dtype)
    check(qkv, {"bias": bias}, bias=bias.astype(np.float64))


@pytest.mark.parametrize("batch", [1, 2])
def test_alibi(qkv: Inputs, rng: np.random.Generator, batch: int) -> None:
    slopes = rng.random((batch, HEADS), dtype=np.float32)
    bias = -slopes[:, :, None, None].astype(np.float64) * abs(P - J)
    check(qkv, {"alibi_slopes": slopes if batch == 2 else slopes[0]}, bias=bias)


def test_scores(qkv: Inputs) -> None:
    check(qkv, {"softmax_scale": 0.5}, softmax_scale=0.5)
    check(qkv, {"softmax_scale": np.float32(0.5)}, softmax_scale=0.5)
    check(qkv, {"softmax_scale": 0}, softmax_scale=0)
    check(qkv, {"softcap": 1.5}, softcap=1.5)


def test_sink(qkv: Inputs, rng: np.random.Generator) -> None:
    sink = random(rng, HEADS)
    check(qkv, {"sink": sink}, sink=sink)


def philox_drops(batch: int, heads: int, rows: int, keys: int) -> Any:
    """Which pairs fall, seen from outside: with v = one-hot of the key, out is the probability that is left."""
    q = np.zeros((batch, rows, heads, 8), np.float32)
    k = np.zeros((batch, keys, heads, 8), np.float32)
    v = np.broadcast_to(np.eye(keys, dtype=np.float32)[None, :, None, :], (batch, keys, heads, keys))
    out = tilewise.attention(q, k, np.ascontiguousarray(v), dropout_p=0.25, dropout_seed=7, dropout_offset=3)
    return np.moveaxis(out, 1, 2) * keys  # (B,H,Sq,Sk): 0, or 1/(1-p)


def test_dropout(qkv: Inputs) -> None:
    factors = philox_drops(2, HEADS, ROWS, KEYS)
    assert 0.2 < (factors == 0).mean() < 0.3
    close(factors[factors > 0], 1 / 0.75)
    options: dict[str, Any] = {"dropout_p": 0.25, "dropout_seed": 7, "dropout_offset": 3}
    check(qkv, options, drop=factors)
    same: dict[str, Any] = {"dropout_p": 0.25, "dropout_state": np.array([7, 1], np.int64), "dropout_offset": 2}
    assert np.array_equal(tilewise.attention(*qkv, **same), tilewise.attention(*qkv, **options))
    assert tilewise.attention(*qkv, dropout_seed=2**64 - 1, dropout_p=0.25).any()
    assert tilewise.attention(*qkv, dropout_seed=0, dropout_p=0.25).any()
    assert "kernel" in tilewise.explain(*qkv, dropout_p=0.25), "a question draws nothing"


@pytest.mark.parametrize("causal", [True, False])
def test_flags_of_numpy(qkv: Inputs, causal: bool) -> None:
    flag: Any = np.bool_(causal)
    close(tilewise.attention(*qkv, causal=flag), tilewise.attention(*qkv, causal=causal), 0)


def test_both_sides_of_a_window_one_by_one(qkv: Inputs) -> None:
    expected = tilewise.attention(*qkv, window=(5, 1))
    close(tilewise.attention(*qkv, window_left=5, window_right=1), expected, 0)
    close(tilewise.attention(*qkv, window=(5, 1), window_left=None), expected, 0)


def test_lengths_of_dense_sequences(qkv: Inputs) -> None:
    seqused_q, seqused_k = np.array([19, 11], np.int32), np.array([23, 5], np.int32)
    out, lse = tilewise.attention(
        *qkv, seqused_q=seqused_q, seqused_k=seqused_k, max_seqlen_q=19, max_seqlen_k=23, return_lse=True
    )
    for b in range(2):
        rows, keys = int(seqused_q[b]), int(seqused_k[b])
        part = oracle.attention(qkv[0][b : b + 1, :rows], qkv[1][b : b + 1, :keys], qkv[2][b : b + 1, :keys])
        close(out[b, :rows], part.out[0])
        close(lse[b, :, :rows], part.lse[0])
        assert not out[b, rows:].any()


def test_left_padding(qkv: Inputs) -> None:
    padding = np.array([0, 9], np.int32)
    check(qkv, {"leftpad_k": padding}, live=padding[:, None, None, None] <= J)


def test_batch_index(qkv: Inputs) -> None:
    q, k, v = qkv
    got = tilewise.attention(q, k, v, batch_index_k=np.array([1, 1], np.int32))
    close(got, oracle.attention(q, k[[1, 1]], v[[1, 1]]).out)


@pytest.mark.parametrize("leading", [False, True])
def test_packed_sequences(rng: np.random.Generator, leading: bool) -> None:
    q, k, v = random(rng, 20, 4, 16), random(rng, 31, 2, 16), random(rng, 31, 2, 8)
    cu_q, cu_k = np.array([0, 7, 7, 20], np.int32), np.array([0, 12, 15, 31], np.int32)
    given = [x[None] if leading else x for x in (q, k, v)]
    out, lse = tilewise.attention_varlen(*given, cu_q, cu_k, causal=True, return_lse=True)
    assert out.shape == ((1, 20, 4, 8) if leading else (20, 4, 8))
    assert lse.shape == ((1, 4, 20) if leading else (4, 20))
    out, lse = out.reshape(20, 4, 8), lse.reshape(4, 20)
    for b in range(3):
        rows, keys = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])
        live = oracle.causal(cu_q[b + 1] - cu_q[b], cu_k[b + 1] - cu_k[b])
        part = oracle.attention(q[None, rows], k[None, keys], v[None, keys], live=live)
        close(out[rows], part.out[0])
        close(lse[:, rows], part.lse[0])


def test_packed_queries_of_dense_keys(rng: np.random.Generator) -> None:
    q, k, v = random(rng, 5, 4, 16), random(rng, 2, 9, 4, 16), random(rng, 2, 9, 4, 16)
    out = tilewise.attention(q, k, v, cu_seqlens_q=np.array([0, 2, 5], np.int32))
    close(out[:2], oracle.attention(q[None, :2], k[:1], v[:1]).out[0])
    close(out[2:], oracle.attention(q[None, 2:], k[1:], v[1:]).out[0])


def test_layout_with_heads_first(qkv: Inputs) -> None:
    expected, expected_lse = tilewise.attention(*qkv, causal=True, return_lse=True)
    turned = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in qkv]
    out, lse = tilewise.attention(*turned, causal=True, layout="bhsd", return_lse=True)
    assert out.flags.c_contiguous
    assert np.array_equal(out.swapaxes(1, 2), expected)
    assert np.array_equal(lse, expected_lse)


def test_strided_views_are_read_in_place(qkv: Inputs, rng: np.random.Generator) -> None:
    wide = random(rng, 2, 40, 9, 16)
    q = wide[:, ::2, 1:5]
    backwards = wide[:, ::-1, 4:0:-1]
    repeated = np.broadcast_to(wide[:1, :1], (2, KEYS, 9, 16))[:, :, :4]
    for x in (q, backwards, repeated):
        k = np.ascontiguousarray(x)
        assert np.array_equal(tilewise.attention(x, k, k), tilewise.attention(k, k, k))
        assert np.array_equal(tilewise.attention(k, x, x), tilewise.attention(k, k, k))
    out = np.zeros((2, 20, 9, 16), np.float32)
    tilewise.attention(q, q, q, out=out[:, :, 2:6])
    assert np.array_equal(out[:, :, 2:6], tilewise.attention(q, q, q))
    assert not out[:, :, :2].any()
    assert not out[:, :, 6:].any()


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float16, 1e-3), (ml_dtypes.bfloat16, 8e-3)])
def test_short_types(qkv: Inputs, dtype: Any, tolerance: float) -> None:
    short = [x.astype(dtype) for x in qkv]
    result = oracle.attention(*short)
    out = tilewise.attention(*short)
    assert out.dtype == dtype
    close(out, result.out, tolerance)
    for wide in ("float32", np.float32, np.dtype(np.float32)):
        exact = tilewise.attention(*short, out_dtype=wide)
        assert exact.dtype == np.float32
        close(exact, result.out, 1e-5)


def test_given_outputs_are_returned(qkv: Inputs) -> None:
    out, lse = np.empty((2, ROWS, HEADS, 8), np.float32), np.empty((2, HEADS, ROWS), np.float32)
    assert tilewise.attention(*qkv, out=out) is out
    got = tilewise.attention(*qkv, out=out, lse=lse)
    assert got[0] is out
    assert got[1] is lse
    close(lse, oracle.attention(*qkv).lse)


def test_parts_merge(qkv: Inputs) -> None:
    q, k, v = qkv
    expected = oracle.attention(q, k, v)
    parts = [tilewise.attention_partial(q, k[:, a:b], v[:, a:b]) for a, b in ((0, 7), (7, 8), (8, 23))]
    for outs, lses in (
        ([part[0] for part in parts], [part[1] for part in parts]),
        (np.stack([part[0] for part in parts]), np.stack([part[1] for part in parts])),
    ):
        out, lse = tilewise.merge(outs, lses, threads=1)
        close(out, expected.out)
        close(lse, expected.lse)
    given = np.empty((2, ROWS, HEADS, 8), np.float16)
    out, lse = tilewise.merge(outs, lses, out=given)
    assert out is given
    assert tilewise.merge(outs, lses, out_dtype="float16")[0].dtype == np.float16
    assert tilewise.merge(outs, lses, out_dtype=ml_dtypes.bfloat16)[0].dtype == ml_dtypes.bfloat16


def test_prior_results_are_merged_in_place(qkv: Inputs) -> None:
    q, k, v = qkv
    out, lse = tilewise.attention_partial(q, k[:, :9], v[:, :9])
    tilewise.attention_partial(q, k[:, 9:], v[:, 9:], out=out, lse=lse, prior_out=out, prior_lse=lse)
    close(out, oracle.attention(q, k, v).out)
    close(lse, oracle.attention(q, k, v).lse)


@pytest.mark.parametrize(
    "options", [{"threads": 2}, {"num_splits": 3}, {"deterministic": True}, {"batch_invariant": True}, {"sm_margin": 1}]
)
def test_options_that_change_no_value(qkv: Inputs, options: dict[str, Any]) -> None:
    check(qkv, options)


@pytest.mark.parametrize("shape", [(0, 5, 2, 8), (1, 0, 2, 8)])
def test_empty_arrays(shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, np.float32)
    assert tilewise.attention(x, x, x).shape == shape


def test_no_keys_give_zero() -> None:
    q, k = np.ones((1, 3, 2, 8), np.float32), np.ones((1, 0, 2, 8), np.float32)
    out, lse = tilewise.attention(q, k, k, return_lse=True)
    assert not out.any()
    assert np.isneginf(lse).all()


def test_packed_arrays_have_one_layout(rng: np.random.Generator) -> None:
    """With heads first only 4-D arrays are turned."""
    offsets = np.array([0, 7, 12], np.int32)
    q, k, v = random(rng, 12, 4, 16), random(rng, 2, 9, 4, 16), random(rng, 2, 9, 4, 16)
    out, lse = tilewise.attention(q, k, v, cu_seqlens_q=offsets, return_lse=True)
    k, v = k.swapaxes(1, 2), v.swapaxes(1, 2)
    turned, turned_lse = tilewise.attention(q, k, v, cu_seqlens_q=offsets, return_lse=True, layout="bhsd")
    assert np.array_equal(turned, out)
    assert np.array_equal(turned_lse, lse)
