"""Calls of the library on plain CPU tensors of PyTorch, without autograd; results are torch's own memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tilewise import _core

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Before torch 2.10 tensors do not lend by DLPack's C exchange API, and __dlpack__ refuses those that require grad.
LENDS = hasattr(Tensor, "__dlpack_c_exchange_api__")


def view(x: Any) -> Any:
    """The memory of a tensor, as tilewise._core takes it; other things as they are."""
    return (x.data_ptr(), str(x.dtype).rpartition(".")[2], tuple(x.shape), x.stride()) if isinstance(x, Tensor) else x


def empty_along(x: Tensor, width: int, dtype: torch.dtype | None = None) -> Tensor:
    """New memory of the shape of x but for its last extent, tokens outside heads or inside as x has them.

    So a result for a transposed view can be transposed back for free.
    """
    *outer, rows, columns = x.shape[:-1]
    dtype = x.dtype if dtype is None else dtype
    if x.stride(-3) >= x.stride(-2):
        return x.new_empty((*outer, rows, columns, width), dtype=dtype)
    return x.new_empty((*outer, columns, rows, width), dtype=dtype).transpose(-3, -2)


def empty_lse(q: Tensor, heads_first: bool) -> Tensor:
    """(B,H,Sq), packed as q is."""
    outer, rows, columns = q.shape[:-3], q.shape[-3], q.shape[-2]
    swapped = not (heads_first and q.dim() == 4)
    return q.new_empty((*outer, columns, rows) if swapped else (*outer, rows, columns), dtype=torch.float32)


def is_regular(*arrays: Tensor) -> bool:
    """Whether they have shapes that results can be made for; if not, the library says what is wrong."""
    return all(3 <= x.dim() <= 4 and x.is_floating_point() for x in arrays)


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    want_lse: bool,
    out_dtype: torch.dtype | None,
    heads_first: bool,
    options: Mapping[str, Any],
) -> tuple[Tensor, Tensor | None]:
    regular = is_regular(q, v)
    out = empty_along(q, v.shape[-1], out_dtype) if regular else None
    lse = empty_lse(q, heads_first) if regular and want_lse else None
    into(q, k, v, out, lse, heads_first, options)
    return out, lse  # type: ignore[return-value]  # what is not regular was refused


def into(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor | None,
    lse: Tensor | None,
    heads_first: bool,
    options: Mapping[str, Any],
) -> None:
    """Writes out, and lse unless it is None."""
    if LENDS:
        _core.forward(q, k, v, out, lse, None, heads_first, options)  # type: ignore[arg-type]
        return
    arrays = [view(x) for x in (q, k, v, out, lse)]
    _core.forward(*arrays, None, heads_first, {name: view(x) for name, x in options.items()})  # type: ignore[call-arg]


def empty_gradients(
    q: Tensor, k: Tensor, v: Tensor, wanted: Sequence[bool], options: Mapping[str, Any]
) -> tuple[Tensor | None, ...]:
    """For q, k, v, bias and sink; None for those not wanted."""
    bias, sink = options.get("bias"), options.get("sink")
    return (
        empty_along(q, q.shape[-1]) if wanted[0] else None,
        empty_along(k, k.shape[-1]) if wanted[1] else None,
        empty_along(v, v.shape[-1]) if wanted[2] else None,
        bias.new_empty(bias.shape) if bias is not None and wanted[3] else None,
        sink.new_empty(sink.shape) if sink is not None and wanted[4] else None,
    )


def backward(
    dout: Tensor | None,
    dlse: Tensor | None,
    arrays: Sequence[Tensor],
    wanted: Sequence[bool],
    heads_first: bool,
    options: Mapping[str, Any],
) -> tuple[Tensor | None, ...]:
    """(dq, dk, dv, dbias, dsink), None for those not wanted. `arrays`: q, k, v, out, lse."""
    q, k, v, out, lse = arrays
    if dout is None:
        dout = torch.zeros_like(out)
    elif dout.stride(-1) != 1:  # a sum's gradient is one number with strides 0
        dout = dout.contiguous()
    gradients = empty_gradients(q, k, v, wanted, options)
    given: list[Any] = [dout, q, k, v, out, lse, dlse]
    if LENDS:
        _core.backward(*given, gradients, False, heads_first, options)  # type: ignore[call-arg]
    else:
        viewed = {name: view(x) for name, x in options.items()}
        _core.backward(*map(view, given), tuple(map(view, gradients)), False, heads_first, viewed)  # type: ignore[call-arg]
    return gradients
