"""Attention, its backward and the merge of partial results."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

from tilewise import _core
from tilewise._gpu_arrays import handle_of
from tilewise._options import Array, Options, VarlenOptions

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from typing_extensions import Unpack

Layout = Literal["bshd", "bhsd"]


def heads_first(layout: str) -> bool:
    if layout == "bshd":
        return False
    if layout == "bhsd":
        return True
    raise ValueError(f"layout is {layout!r}; there are 'bshd' and 'bhsd'")


def dtype_name(dtype: Any) -> str | None:
    """The name of a type that is given as "float32", numpy.float32, numpy.dtype or torch.float32."""
    if dtype is None or isinstance(dtype, str):
        return dtype
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    return str(name).rpartition(".")[2]


def _refuse_grad(arguments: Mapping[str, Any]) -> None:
    for name, x in arguments.items():
        if getattr(x, "requires_grad", False):
            raise ValueError(f"{name} requires grad, which no array result can carry; tilewise.torch.attention does")
    _refuse_negated(arguments)


def _refuse_negated(arguments: Mapping[str, Any]) -> None:
    """DLPack does not tell that the numbers in a tensor's memory are the negated ones."""
    for name, x in arguments.items():
        is_neg = getattr(x, "is_neg", None)
        if is_neg is not None and is_neg():
            raise ValueError(f"{name} is a view that torch negates as it reads it; resolve_neg() makes a plain tensor")


@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    out: Array | None = None,
    lse: None = None,
    return_lse: Literal[False] = False,
    out_dtype: Any = None,
    layout: Layout = "bshd",
    stream: Any = None,
    **options: Unpack[Options],
) -> Array: ...
@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    out: Array | None = None,
    lse: Array | None = None,
    return_lse: bool = False,
    out_dtype: Any = None,
    layout: Layout = "bshd",
    stream: Any = None,
    **options: Unpack[Options],
) -> Any: ...
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    out: Array | None = None,
    lse: Array | None = None,
    return_lse: bool = False,
    out_dtype: Any = None,
    layout: Layout = "bshd",
    stream: Any = None,
    **options: Unpack[Options],
) -> Any:
    """softmax(softmax_scale * q @ k.T, masked) @ v, for each sequence and head.

    Args:
        q: (B,Sq,H,D), float32, float16 or bfloat16. Packed: (total,H,D) or (1,total,H,D), with cu_seqlens_q.
        k: (B,Sk,Hk,D), the type of q; H is a multiple of Hk, and query head h reads h // (H // Hk).
        v: (B,Sk,Hk,Dv), the type of q. The last axis of q, k and v has stride 1; other strides are free.
        out: (B,Sq,H,Dv), written and returned; a new array if left out.
        lse: float32 (B,H,Sq), written: the natural logarithm of the sum of exp of the final scores.
        return_lse: bool, default False. Also return lse, in a new array if none is given.
        out_dtype: the type of a new `out`: that of q, the default, or "float32".
        layout: "bshd", the default, or "bhsd": heads come before tokens in every 4-D array of tokens, q, k, v, out and
            prior_out.
        stream: for arrays on a GPU: the stream to enqueue the call on, an object of the array's library or a
            cudaStream_t as an int. If left out, the one that the library of q works on at present.
        **options: scale, masks, lengths, dropout and more: help(tilewise.Options) lists them.

    Returns:
        out, or (out, lse) with `lse` or `return_lse`. A row without a live key is 0, with lse -inf.

    Raises:
        ValueError, TypeError, NotImplementedError, MemoryError, RuntimeError: see the module; outputs given are then
            untouched, except after a RuntimeError.

    Source: Dao 2023, FlashAttention-2, section 3.1; masks and edges as in docs/contract.md.
    """
    # Written out, since a call of `_refuse_grad` takes 0.3 us more.
    has_tensors = (
        hasattr(q, "requires_grad")
        or hasattr(k, "requires_grad")
        or hasattr(v, "requires_grad")
        or (out is not None and hasattr(out, "requires_grad"))
        or (lse is not None and hasattr(lse, "requires_grad"))
    )
    for value in options.values():
        has_tensors = has_tensors or hasattr(value, "requires_grad")
    if has_tensors:
        _refuse_grad({"q": q, "k": k, "v": v, "out": out, "lse": lse, **options})
    if lse is None and return_lse:
        lse = True
    dtype = None if out_dtype is None else dtype_name(out_dtype)
    if stream is not None:
        return _core.forward(q, k, v, out, lse, dtype, heads_first(layout), options, 0, 0, handle_of(stream))
    return _core.forward(q, k, v, out, lse, dtype, heads_first(layout), options)


def attention_varlen(
    q: Array,
    k: Array,
    v: Array,
    cu_seqlens_q: Array,
    cu_seqlens_k: Array,
    *,
    out: Array | None = None,
    lse: Array | None = None,
    return_lse: bool = False,
    out_dtype: Any = None,
    stream: Any = None,
    **options: Unpack[VarlenOptions],
) -> Any:
    """Attention of packed sequences: sequence b is rows cu_seqlens[b] to cu_seqlens[b+1].

    Args:
        q: (total_q,H,D); k: (total_k,Hk,D); v: (total_k,Hk,Dv); out: (total_q,H,Dv); lse: (H,total_q).
        cu_seqlens_q, cu_seqlens_k: int32 (B+1), from 0, ascending.
        The rest as in `attention`, which is the same with these two as keywords.
    """
    return attention(
        q,
        k,
        v,
        out=out,
        lse=lse,
        return_lse=return_lse,
        out_dtype=out_dtype,
        stream=stream,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        **options,
    )


def attention_partial(
    q: Array,
    k: Array,
    v: Array,
    *,
    out: Array | None = None,
    lse: Array | None = None,
    layout: Layout = "bshd",
    stream: Any = None,
    **options: Unpack[Options],
) -> tuple[Array, Array]:
    """(out, lse) in float32 over a part of the keys, for `merge` or for prior_out and prior_lse of the next part.

    Arguments as in `attention`. Where masks or ALiBi go by position (causal, top_left, window, attention_chunk,
    alibi_slopes), give q_positions and k_positions, which say where the part stands. Without them a causal mask is laid
    at the end of the keys given, as if there were no others, and the merged result is another one.
    """
    partial: tuple[Array, Array] = attention(
        q, k, v, out=out, lse=lse, return_lse=True, out_dtype="float32", layout=layout, stream=stream, **options
    )
    return partial


class Gradients(NamedTuple):
    """Of the arguments of `attention`; None where not asked for."""

    dq: Array
    dk: Array
    dv: Array
    dbias: Array
    dsink: Array


GRADIENTS = ("q", "k", "v", "bias", "sink")


def attention_backward(
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    *,
    dlse: Array | None = None,
    dq: Array | None = None,
    dk: Array | None = None,
    dv: Array | None = None,
    dbias: Array | None = None,
    dsink: Array | None = None,
    want: Collection[str] = ("q", "k", "v"),
    accumulate: bool = False,
    layout: Layout = "bshd",
    stream: Any = None,
    **options: Unpack[Options],
) -> Gradients:
    """Gradients of sum(out * dout) + sum(lse * dlse).

    Args:
        dout: like out. q, k, v, out, lse and the options: those of the forward call.
        dlse: float32, like lse.
        dq, dk, dv, dbias, dsink: arrays to write to, like their argument or float32; dsink float32 (H).
        want: what to compute in new arrays if none are given: of "q", "k", "v", "bias" (summed over the axes where
            bias repeats) and "sink", which the call must have. Gradients whose arrays are given are computed in any
            case.
        accumulate: add to dq, dk and dv, which are then float32 and given.
        layout, stream: as in `attention`; the layout also of dout, dq, dk and dv.

    Raises:
        As `attention`.

    Source: Dao 2023, FlashAttention-2, section 3.1.2.
    """
    _refuse_negated({"dout": dout, "q": q, "k": k, "v": v, "out": out, "lse": lse, "dlse": dlse, **options})
    _refuse_negated({"dq": dq, "dk": dk, "dv": dv, "dbias": dbias, "dsink": dsink})
    want = tuple(want)
    unknown = [name for name in want if name not in GRADIENTS]
    if unknown:
        raise ValueError(f"want has {unknown[0]!r}; there are {', '.join(GRADIENTS)}")
    given = (dq, dk, dv, dbias, dsink)
    gradients: Any = tuple(
        True if array is None and name in want else array for name, array in zip(GRADIENTS, given, strict=True)
    )
    if accumulate and any(gradient is True for gradient in gradients[:3]):
        raise ValueError("accumulate adds to dq, dk and dv; give those in want")
    place = () if stream is None else (0, 0, handle_of(stream))
    return Gradients(
        *_core.backward(dout, q, k, v, out, lse, dlse, gradients, accumulate, heads_first(layout), options, *place)
    )


def _stacked(parts: Any, name: str) -> Any:
    """Parts in a list or tuple as one array; by a copy."""
    if not isinstance(parts, list | tuple) or not parts:
        return parts
    kind = type(parts[0])
    if hasattr(kind, "__array_namespace__"):
        return parts[0].__array_namespace__().stack(parts)
    for base in kind.__mro__:
        library = sys.modules.get(base.__module__.partition(".")[0])
        if library is not None and hasattr(library, "stack"):
            return library.stack(parts)
    raise TypeError(f"{name} has a {kind.__name__}; it takes arrays of a library that can stack them, or one array")


def merge(
    out_parts: Array | Sequence[Array],
    lse_parts: Array | Sequence[Array],
    *,
    out: Array | None = None,
    lse: Array | None = None,
    out_dtype: Any = None,
    layout: Layout = "bshd",
    threads: int | None = 0,
    stream: Any = None,
) -> tuple[Array, Array]:
    """(out, lse) over all keys, of results over disjoint parts of them.

    Args:
        out_parts: float32 (parts,B,Sq,H,Dv), or a list of the parts, which is stacked by a copy.
        lse_parts: float32 (parts,B,H,Sq), or a list.
        out, lse: (B,Sq,H,Dv) and float32 (B,H,Sq), written and returned; new arrays if left out.
        out_dtype: the type of a new `out`; float32 if left out.
        layout: as in `attention`; of out_parts and out.
        threads: tasks to run at once; 0, or None, = all cores that the process may use. Nothing on a GPU.
        stream: as in `attention`.

    Source: Milakov and Gimelshein 2018, Online normalizer calculation for softmax, section 3.1.
    """
    out_parts, lse_parts = _stacked(out_parts, "out_parts"), _stacked(lse_parts, "lse_parts")
    _refuse_grad({"out_parts": out_parts, "lse_parts": lse_parts, "out": out, "lse": lse})
    place = () if stream is None else (handle_of(stream),)
    return _core.merge(out_parts, lse_parts, out, lse, dtype_name(out_dtype), heads_first(layout), threads, *place)
