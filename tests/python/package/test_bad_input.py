"""What is refused: the exception, and words of its message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tilewise

X = np.zeros((1, 5, 2, 8), np.float32)
OFFSETS = np.array([0, 5], np.int32)


def unaligned() -> Any:
    """Elements 5 bytes apart."""
    return np.zeros((1, 5, 2, 8), np.dtype([("x", np.float32), ("y", np.int8)]))["x"]


def read_only() -> Any:
    out = np.zeros_like(X)
    out.flags.writeable = False
    return out


def call(q: Any = X, k: Any = X, v: Any = X, **options: Any) -> Callable[[], Any]:
    return lambda: tilewise.attention(q, k, v, **options)


def backward(**options: Any) -> Callable[[], Any]:
    return lambda: tilewise.attention_backward(X, X, X, X, X, np.zeros((1, 2, 5), np.float32), **options)


def merge(**options: Any) -> Any:
    return tilewise.merge(X[None], X[None, 0, :2], **options)


BAD: list[tuple[str, type[Exception], Callable[[], Any], str]] = [
    ("object arrays", TypeError, call(q=X.astype(object)), "q has type object"),
    ("float64", TypeError, call(X.astype(np.float64)), "q has type float64"),
    ("complex", TypeError, call(k=X.astype(np.complex64)), "k has type complex64"),
    ("strings", TypeError, call(v=X.astype(str)), "v has type str"),
    ("no array", TypeError, call(q=3), "q is a int; it takes an array"),
    ("a list", TypeError, call(k=X.tolist()), "k is a list; it takes an array"),
    ("None", TypeError, call(v=None), "v is a NoneType"),
    ("masked arrays", TypeError, call(q=np.ma.masked_array(X)), "q is a masked array"),  # type: ignore[no-untyped-call]
    ("other byte order", TypeError, call(q=X.astype(">f4")), "q has type >f4, in another byte order"),
    ("one axis", ValueError, call(q=X[0, 0, 0]), "q has 1 axes; it takes 3 to 4"),
    ("five axes", ValueError, call(q=X[None]), "q has 5 axes"),
    ("seven axes", ValueError, call(q=X[None, None, None]), "q has 7 axes"),
    ("no offsets", ValueError, call(q=X[0]), "q has 3 axes, .* needs cu_seqlens_q"),
    ("no offsets of k", ValueError, call(k=X[0], v=X[0]), "k has 3 axes, .* needs cu_seqlens_k"),
    ("mixed types", ValueError, call(k=X.astype(np.float16)), "k"),
    ("mixed head sizes", ValueError, call(k=X[..., :4].copy()), "k"),
    ("heads that do not divide", ValueError, call(k=np.zeros((1, 5, 3, 8), np.float32)), 'layout="bhsd"'),
    ("keys and values", ValueError, call(v=X[:, :4]), "v"),
    ("batch", ValueError, call(k=np.zeros((2, 5, 2, 8), np.float32)), "k"),
    ("integers", ValueError, call(q=X.astype(np.int32)), "q"),
    ("queries of 8 bits", ValueError, call(*[X.astype(np.int8)] * 3), "q.dtype is int8"),
    ("keys of 8 bits", NotImplementedError, call(X, X.astype(np.int8), X.astype(np.int8)), "k"),
    ("no heads", ValueError, call(*[X[:, :, :0]] * 3), "q.shape"),
    ("heads of no size", ValueError, call(*[X[..., :0]] * 3), "q"),
    ("last axis apart", ValueError, call(q=X[..., ::2], k=X[..., :4].copy()), "q"),
    ("last axis backwards", ValueError, call(q=X[..., ::-1]), "q"),
    ("broken elements", ValueError, call(q=unaligned()), "q has a stride of .* bytes on axis"),
    ("read-only out", ValueError, call(out=read_only()), "out is read-only"),
    ("shape of out", ValueError, call(out=np.zeros((1, 5, 2, 4), np.float32)), "out"),
    ("type of out", ValueError, call(out=X.astype(np.float16)), "out"),
    ("out on an input", ValueError, call(out=X), "out"),
    ("type of lse", ValueError, call(lse=np.zeros((1, 2, 5), np.float16)), "lse"),
    ("shape of lse", ValueError, call(lse=np.zeros((1, 5, 2), np.float32)), "lse"),
    ("out_dtype", TypeError, call(out_dtype="float63"), "out_dtype is float63"),
    ("integers as results", TypeError, call(out_dtype="int8"), "out_dtype is int8"),
    ("shorter results", ValueError, call(out_dtype="bfloat16"), "out"),
    ("layout", ValueError, call(layout="sbhd"), "layout is 'sbhd'"),
    ("a wrong letter", TypeError, call(casual=True), "no keyword 'casual'; did you mean causal\\?$"),
    ("a result's name", TypeError, backward(retrun_lse=True), "no keyword 'retrun_lse'; did you mean return_lse\\?$"),
    ("unknown keyword", TypeError, call(frobnicate=True), "no keyword 'frobnicate'$"),
    ("flash-attn's keyword", TypeError, call(window_size=(3, 0)), r"'window_size'; here it is window=\(left, right\)"),
    ("PyTorch's keyword", TypeError, call(is_causal=True), "'is_causal'; here it is causal, with top_left"),
    ("truth of a number", TypeError, call(causal=1), "causal is 1; it takes True or False"),
    ("text for a number", TypeError, call(softcap="a"), "softcap is 'a'; it takes a number"),
    ("fraction of a thread", TypeError, call(threads=1.5), "threads is 1.5; it takes an integer"),
    ("many threads", ValueError, call(threads=2**40), "threads is"),
    ("endless integer", ValueError, call(max_seqlen_q=2**80), "max_seqlen_q is"),
    ("negative seed", ValueError, call(dropout_seed=-1), "dropout_seed is -1"),
    ("negative window", ValueError, call(window=(-1, -1)), "window_left is -1: .* leave it out .*Python: None"),
    ("two windows", ValueError, call(window=(5, 0), window_left=3), r"window is \(5, 0\) and window_left is 3"),
    ("again two windows", ValueError, call(window_right=3, window=(5, 0)), r"window is \(5, 0\) and window_right is 3"),
    ("half a window", TypeError, call(window=3), r"window is 3; it takes \(left, right\)"),
    ("dropout of all", ValueError, call(dropout_p=1.0), "dropout_p is 1: must be"),
    ("dropout without a seed", ValueError, call(dropout_p=0.1), "dropout_p is 0.1 without dropout_seed, .* the mask"),
    ("gradients of such dropout", ValueError, backward(dropout_p=0.1), "dropout_p is 0.1 without dropout_seed"),
    ("infinite scale", ValueError, call(softmax_scale=float("inf")), "softmax_scale"),
    ("negative cap", ValueError, call(softcap=-1.0), "softcap"),
    ("type of a mask", ValueError, call(mask=np.ones((5, 5), np.int32)), "mask"),
    ("numbers as a mask", ValueError, call(mask=np.zeros((5, 5), np.float32)), "mask.dtype is fp32: .* is bias"),
    ("shape of a mask", ValueError, call(mask=np.ones((4, 5), bool)), "mask"),
    ("shape of a bias", ValueError, call(bias=np.ones((3, 5, 5), np.float32)), "bias"),
    ("type of offsets", ValueError, call(X[0], X, X, cu_seqlens_q=OFFSETS.astype(np.int64)), "cu_seqlens_q"),
    ("offsets that go back", ValueError, call(X[0], X, X, cu_seqlens_q=OFFSETS[::-1].copy()), "cu_seqlens_q"),
    (
        "axes of offsets",
        ValueError,
        call(X[0], X, X, cu_seqlens_q=OFFSETS[None]),
        "cu_seqlens_q has 2 axes; it takes 1",
    ),
    ("lengths past the slot", ValueError, call(seqused_k=np.array([9], np.int32)), "seqused_k"),
    ("paged keys", NotImplementedError, call(block_table=np.zeros((1, 1), np.int32)), "block_table"),
    ("scales", NotImplementedError, call(k_scale=np.ones((1, 1, 1, 1), np.float32)), "k_scale"),
    ("values in keys", NotImplementedError, call(v_in_k=True), "^v_in_k"),
    ("scales a sequence", NotImplementedError, call(scale_per_sequence=True), "^scale_per_sequence"),
    ("large heads", NotImplementedError, call(*[np.zeros((1, 1, 1, 520), np.float32)] * 3), "520"),
    ("view of three", TypeError, call(q=(0, "float32", (1, 5, 2, 8))), "q: a view is a tuple"),
    ("view of a type", TypeError, call(q=(0, "f4", (1, 5, 2, 8), None)), "q has type f4"),
    ("view of strides", ValueError, call(q=(0, "float32", (1, 5, 2, 8), (1,))), "q: a view of 4 axes has 1 strides"),
    ("view without memory", ValueError, call(q=tilewise.without_memory((1, 5, 2, 8))), "q"),
    ("gradient of no bias", ValueError, backward(want=("bias",)), "dbias is wanted but bias is absent"),
    ("gradient of no sink", ValueError, backward(want=("q", "sink")), "dsink is wanted but sink is absent"),
    ("array for a gradient of no bias", ValueError, backward(dbias=np.zeros((5, 5), np.float32)), "bias is absent"),
    (
        "a mask as truth",
        TypeError,
        call(causal=np.ones((50, 50), bool)),
        r"causal is array\(\[\[ ?True.{,80}; it takes",
    ),
    ("past float32", ValueError, call(softmax_scale=1e300), r"softmax_scale is 1e\+300; it takes"),
    ("result of no type", TypeError, call(out_dtype=0), "out_dtype is 0"),
    ("number to accumulate", TypeError, backward(want=(), accumulate=1), "accumulate is 1; it takes True or False"),
    ("number for backward", TypeError, lambda: tilewise.explain(X, X, X, backward=1), "backward is 1; it takes"),  # type: ignore[arg-type]
    ("negative memory", ValueError, lambda: tilewise.traffic(X, X, X, fast_memory=-1), "fast_memory is -1"),
    ("endless memory", ValueError, lambda: tilewise.traffic(X, X, X, fast_memory=2**80), "fast_memory is"),
    (
        "extent of a view",
        ValueError,
        call(q=tilewise.without_memory((2**63, 1, 1, 1))),
        "q.shape is 9223372036854775808",
    ),
    (
        "no type of a view",
        TypeError,
        call(q=tilewise.without_memory((1, 5, 2, 8), None)),
        "q: the type of a view is None",
    ),
    ("threads to merge", ValueError, lambda: merge(threads=2**40), "threads is 1099511627776; it takes 32 bits"),
    ("text for threads to merge", TypeError, lambda: merge(threads="a"), "threads is 'a'; it takes an integer"),
    ("numbers to merge", TypeError, lambda: tilewise.merge([1, 2], [3, 4]), "out_parts has a int; it takes arrays"),
    ("parts to merge", ValueError, lambda: tilewise.merge(X, X), "lse_parts"),
    ("numbers of parts", ValueError, lambda: tilewise.merge(X[None].repeat(3, 0), X[0, :2].repeat(2, 0)), "parts"),
]


@pytest.mark.parametrize(("name", "exception", "act", "message"), BAD, ids=[case[0] for case in BAD])
def test_refused(name: str, exception: type[Exception], act: Callable[[], Any], message: str) -> None:
    del name
    with pytest.raises(exception, match=message) as caught:
        act()
    assert caught.type is exception
    assert "\n" not in str(caught.value)


class Interrupting:
    def __index__(self) -> int:
        raise KeyboardInterrupt


def test_an_interrupt_is_no_wrong_number() -> None:
    with pytest.raises(KeyboardInterrupt):
        tilewise.attention(X, X, X, threads=Interrupting())  # type: ignore[arg-type]


def test_what_is_wanted_may_be_an_iterator() -> None:
    lse = np.zeros((1, 2, 5), np.float32)
    gradients = tilewise.attention_backward(X, X, X, X, X, lse, want=iter(("q", "v")))  # type: ignore[arg-type]
    assert [gradient is not None for gradient in gradients] == [True, False, True, False, False]


def test_outputs_are_untouched_after_an_error() -> None:
    out = np.full_like(X, 7)
    with pytest.raises(ValueError, match="seqused_k"):
        tilewise.attention(X, X, X, out=out, seqused_k=np.array([9], np.int32))
    assert (out == 7).all()


def test_no_memory_for_a_result() -> None:
    q = np.broadcast_to(np.zeros((1, 1, 1, 8), np.float32), (1, 2**40, 1, 8))
    with pytest.raises(MemoryError):
        tilewise.attention(q, X[:, :, :1], X[:, :, :1])


def test_explain_tells_an_error_in_its_answer() -> None:
    answer = tilewise.explain(X, X, X, softcap=-1.0)
    assert answer["error"]["name"] == "TW_INVALID_ARGUMENT"
    assert "softcap" in answer["error"]["message"]
