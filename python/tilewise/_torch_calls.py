"""Calls of the library on plain tensors of PyTorch, without autograd; results are torch's own memory.

On the CPU they run on torch's own threads, as many as torch.get_num_threads() says. Those wait for their next work
awake, by default, and would keep the cores from threads of the library's.

On a GPU they run on torch's current stream there, and the workspace is memory of torch's allocator. That gives memory
out again in the order of the stream, so nothing has to be recorded or kept, and a CUDA graph can capture it.
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch._C import _get_tracing_state, _is_any_autocast_enabled, _len_torch_dispatch_stack
from torch._C._functorch import peek_interpreter_stack
from torch.nn import Parameter

from tilewise import _core

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# Before torch 2.10 tensors do not lend by DLPack's C exchange API, and __dlpack__ refuses those that require grad.
LENDS = hasattr(Tensor, "__dlpack_c_exchange_api__")


def _openmp_of_torch() -> int:
    """The address of GOMP_parallel in the OpenMP that torch has loaded, 0 if it has none."""
    try:
        return ctypes.cast(ctypes.CDLL(torch._C.__file__).GOMP_parallel, ctypes.c_void_p).value or 0
    except (OSError, AttributeError):
        return 0


class Host:
    """Of the threads that do the work."""

    openmp = _openmp_of_torch()


# A forked child has none of these threads, and OpenMP would wait for them.
os.register_at_fork(after_in_child=lambda: setattr(Host, "openmp", 0))


FiveGradients: TypeAlias = "tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None]"


def view(x: Any) -> Any:
    """The memory of a tensor, as tilewise._core takes it; other things as they are."""
    if not isinstance(x, Tensor):
        return x
    described = (x.data_ptr(), str(x.dtype).rpartition(".")[2], tuple(x.shape), x.stride())
    return described if x.is_cpu else (*described, x.__dlpack_device__())


def _views(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: view(x) for name, x in options.items()}


def _workspace(q: Tensor, size: int) -> Tensor:
    return q.new_empty(size, dtype=torch.int8)


# Threads of no host; the stream that torch itself tells by the exchange API; what gives a workspace.
ON_GPU = (0, 0, None, _workspace)


def _place(q: Tensor) -> tuple[int, int, int | None, Callable[[Any, int], Any] | None]:
    """Where a call runs: OpenMP and its threads, or the stream and what gives a workspace."""
    if q.is_cpu:
        return Host.openmp, torch.get_num_threads(), None, None
    if LENDS:
        return ON_GPU
    stream = torch._C._cuda_getCurrentRawStream(q.get_device())
    return 0, 0, stream, lambda _, size: view(_workspace(q, size))


def empty_along(x: Tensor, width: int, dtype: torch.dtype | None = None) -> Tensor:
    """New memory of the shape of x but for its last extent, tokens outside heads or inside as x has them.

    So a result for a transposed view can be transposed back for free.
    """
    if dtype is None and x.is_contiguous() and x.shape[-1] == width:
        return torch.empty_like(x)
    *outer, first, second, _ = x.shape
    dtype = x.dtype if dtype is None else dtype
    if x.stride(-3) >= x.stride(-2):
        return x.new_empty((*outer, first, second, width), dtype=dtype)
    return x.new_empty((*outer, second, first, width), dtype=dtype).transpose(-3, -2)


def empty_lse(q: Tensor, heads_first: bool) -> Tensor:
    """(B,H,Sq), packed as q is."""
    *outer, first, second, _ = q.shape
    heads, tokens = (first, second) if heads_first and q.dim() == 4 else (second, first)
    return q.new_empty((*outer, heads, tokens), dtype=torch.float32)


class Torch(NamedTuple):
    """What `_core.eager` asks of torch, which it knows by this order."""

    tensor: type = Tensor
    parameter: type = Parameter
    watchers: tuple[Callable[[], object], ...] = (
        peek_interpreter_stack,
        _len_torch_dispatch_stack,
        _get_tracing_state,
        _is_any_autocast_enabled,
    )
    is_grad_enabled: Callable[[], bool] = torch.is_grad_enabled
    threads: Callable[[], int] = torch.get_num_threads
    empty_like: Callable[[Tensor], Tensor] = torch.empty_like
    empty_along: Callable[[Tensor, int], Tensor] = empty_along
    empty_lse: Callable[[Tensor, bool], Tensor] = empty_lse
    workspace: Callable[[Tensor, int], Tensor] = _workspace


TORCH = Torch()


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor | None,
    lse: Tensor | bool,
    out_dtype: torch.dtype | None,
    heads_first: bool,
    options: Mapping[str, Any],
) -> Any:
    """out, or (out, lse) unless `lse` is False; in new tensors where none is given."""
    given: Any = None if lse is False else lse
    if q.dim() >= 3 and v.dim() >= 3:  # otherwise the library refuses them
        if out is None:
            out = empty_along(q, v.shape[-1], out_dtype)
        if given is True:
            given = empty_lse(q, heads_first)
    place = _place(q)
    if LENDS:
        return _core.forward(q, k, v, out, given, None, heads_first, options, *place)
    _core.forward(view(q), view(k), view(v), view(out), view(given), None, heads_first, _views(options), *place)
    return out if given is None else (out, given)


def empty_gradients(
    q: Tensor, k: Tensor, v: Tensor, wanted: Sequence[bool], options: Mapping[str, Any]
) -> FiveGradients:
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
) -> FiveGradients:
    """(dq, dk, dv, dbias, dsink), None for those not wanted. `arrays`: q, k, v, out, lse."""
    q, k, v, out, lse = arrays
    if dout is None:
        dout = torch.zeros_like(out)
    elif dout.stride(-1) != 1 or dout.is_neg():  # a sum's gradient is one number with strides 0
        dout = dout.clone(memory_format=torch.contiguous_format)
    if dlse is not None and dlse.is_neg():
        dlse = dlse.clone()
    gradients = empty_gradients(q, k, v, wanted, options)
    place = _place(q)
    if LENDS:
        _core.backward(dout, q, k, v, out, lse, dlse, gradients, False, heads_first, options, *place)
        return gradients
    dq, dk, dv, dbias, dsink = map(view, gradients)
    _core.backward(
        view(dout), view(q), view(k), view(v), view(out), view(lse), view(dlse), (dq, dk, dv, dbias, dsink), False,
        heads_first, _views(options), *place,
    )  # fmt: skip
    return gradients
