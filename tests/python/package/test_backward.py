"""Gradients against central differences of the oracle, and the ways to ask for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle
import pytest
import tilewise
from oracle import Float32, random

Inputs = tuple[Float32, Float32, Float32]


def forward(inputs: Inputs, **options: Any) -> tuple[Any, Any]:
    result: tuple[Any, Any] = tilewise.attention(*inputs, return_lse=True, **options)
    return result


def test_all_gradients(qkv: Inputs, rng: np.random.Generator) -> None:
    q, k, v = qkv
    bias, sink = random(rng, 1, 4, 19, 23), random(rng, 4)
    dout, dlse = random(rng, 2, 19, 4, 8), random(rng, 2, 4, 19)
    live = oracle.causal(19, 23)
    options: dict[str, Any] = {"bias": bias, "sink": sink, "causal": True, "softcap": 3.0, "softmax_scale": 0.3}

    def loss(q: Any = q, k: Any = k, v: Any = v, bias: Any = bias, sink: Any = sink) -> float:
        result = oracle.attention(q, k, v, live=live, bias=bias, sink=sink, softcap=3.0, softmax_scale=0.3)
        return float((result.out * dout).sum() + (result.lse * dlse).sum())

    out, lse = forward(qkv, **options)
    gradients = tilewise.attention_backward(
        dout, q, k, v, out, lse, dlse=dlse, want=("q", "k", "v", "bias", "sink"), **options
    )
    for name, x, gradient in zip(tilewise.Gradients._fields, (q, k, v, bias, sink), gradients, strict=True):
        assert gradient is not None
        assert gradient.shape == x.shape
        for index, expected in oracle.numeric_gradient(lambda y, n=name[1:]: loss(**{n: y}), x, 6, rng):
            assert gradient[index] == pytest.approx(expected, rel=1e-3, abs=1e-3), name


def test_only_what_is_wanted(qkv: Inputs) -> None:
    out, lse = forward(qkv)
    every = tilewise.attention_backward(out, *qkv, out, lse)
    assert every.dbias is None
    assert every.dsink is None
    only = tilewise.attention_backward(out, *qkv, out, lse, want="k")
    assert only.dq is None
    assert only.dv is None
    assert np.array_equal(only.dk, every.dk)
    given = np.empty_like(qkv[0])
    into = tilewise.attention_backward(out, *qkv, out, lse, dq=given, want=())
    assert into.dq is given
    assert into.dk is None
    assert np.array_equal(given, every.dq)


def test_gradients_of_heads_first(qkv: Inputs) -> None:
    out, lse = forward(qkv, causal=True)
    expected = tilewise.attention_backward(out, *qkv, out, lse, causal=True)
    turned = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (out, *qkv, out)]
    got = tilewise.attention_backward(*turned, lse, causal=True, layout="bhsd", deterministic=True)
    for a, b in zip(got[:3], expected[:3], strict=True):
        assert np.array_equal(a.swapaxes(1, 2), b)


def test_packed_gradients(rng: np.random.Generator) -> None:
    q, k, v = (random(rng, 12, 2, 16) for _ in range(3))
    options = {"cu_seqlens_q": np.array([0, 5, 12], np.int32), "cu_seqlens_k": np.array([0, 5, 12], np.int32)}
    out, lse = forward((q, k, v), **options)
    dq, dk, dv = tilewise.attention_backward(out, q, k, v, out, lse, **options)[:3]  # type: ignore[arg-type]
    for rows in (slice(0, 5), slice(5, 12)):
        part = [x[None, rows] for x in (out, q, k, v, out)]
        alone = tilewise.attention_backward(*part, np.ascontiguousarray(lse[None, :, rows]))
        for whole, one in zip((dq, dk, dv), alone[:3], strict=True):
            assert whole.shape == (12, 2, 16)
            np.testing.assert_allclose(whole[rows], one[0], rtol=1e-5, atol=1e-6)


def test_accumulate_adds(qkv: Inputs) -> None:
    out, lse = forward(qkv)
    every = tilewise.attention_backward(out, *qkv, out, lse)
    sums = [np.full_like(x, 2) for x in qkv]
    tilewise.attention_backward(out, *qkv, out, lse, dq=sums[0], dk=sums[1], dv=sums[2], accumulate=True)
    for a, b in zip(sums, every[:3], strict=True):
        np.testing.assert_allclose(a, b + 2, rtol=1e-6, atol=1e-6)
    with pytest.raises(ValueError, match="accumulate adds to dq, dk and dv"):
        tilewise.attention_backward(out, *qkv, out, lse, accumulate=True)


def test_short_types_with_wide_gradients(qkv: Inputs) -> None:
    inputs = [x.astype(np.float16) for x in qkv]
    out, lse = forward(inputs)  # type: ignore[arg-type]
    wide = np.empty(qkv[0].shape, np.float32)
    got = tilewise.attention_backward(out, *inputs, out, lse, dq=wide)
    assert got.dk is not None
    assert got.dk.dtype == np.float16
    narrow = tilewise.attention_backward(out, *inputs, out, lse).dq
    np.testing.assert_allclose(wide, narrow, rtol=1e-3, atol=1e-4)


def test_dropout_is_that_of_the_forward(qkv: Inputs, rng: np.random.Generator) -> None:
    options: dict[str, Any] = {"dropout_p": 0.3, "dropout_seed": 5, "dropout_offset": 1}
    dout = random(rng, 2, 19, 4, 8)
    out, lse = forward(qkv, **options)
    dv = tilewise.attention_backward(dout, *qkv, out, lse, want="v", **options).dv
    # out is linear in v: <dv, w> is <dout, out of w>.
    w = random(rng, *qkv[2].shape)
    along = tilewise.attention(qkv[0], qkv[1], w, **options)
    assert float((dv * w).sum()) == pytest.approx(float((dout * along).sum()), rel=1e-4)


def test_unknown_gradient(qkv: Inputs) -> None:
    out, lse = forward(qkv)
    with pytest.raises(ValueError, match="want has 'x'"):
        tilewise.attention_backward(out, *qkv, out, lse, want=["x"])
