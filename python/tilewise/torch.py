"""Attention on tensors of PyTorch 2.4 and newer, with autograd and torch.compile.

    import tilewise.torch
    out = tilewise.torch.attention(q, k, v, causal=True)

Eager calls on plain tensors go straight to the library. Whatever records or rewrites operations (torch.compile,
torch.export, fake and meta tensors, dispatch modes) gets torch.ops.tilewise.forward and .backward.
A program loaded by torch.export.load needs `import tilewise.torch` first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._C import _get_tracing_state, _is_any_autocast_enabled, _len_torch_dispatch_stack
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling
from torch.nn import Parameter

from tilewise import _torch_calls as calls
from tilewise import _torch_ops as ops
from tilewise._attention import Layout, dtype_name, heads_first
from tilewise._core import GRAD, PLAIN, STRIDES, eager, look

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Unpack

    from tilewise._options import Options, VarlenOptions

__all__ = ["attention", "attention_varlen", "dropout_state"]

DEVICES = ("cpu", "cuda", "meta")  # that the operators have kernels for
DIFFERENTIABLE = ("bias", "sink")  # of the options
REQUIRED = ("q", "k", "v")
ARRAYS = frozenset((*REQUIRED, "out", "lse", *ops.TENSORS))
NO_TRANSFORMS = (
    "tilewise.torch.attention takes no part in torch.func, torch.vmap and is_grads_batched; use torch.autograd, and"
    " fold a mapped axis into B"
)
DROPOUT = ("dropout_seed", "dropout_offset", "dropout_state")


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    return_lse: bool = False,
    out_dtype: torch.dtype | str | None = None,
    layout: Layout = "bshd",
    **options: Unpack[Options],
) -> Any:
    """softmax(softmax_scale * q @ k.T, masked) @ v, for each sequence and head: `tilewise.attention` with autograd.

    Differentiable, once, in q, k, v, bias and sink, through out and lse. Arguments and results as in
    `tilewise.attention`, except:

        q, k, v: of any strides; only where that of the last axis is not 1 a copy is made first. Under autocast they
            are cast to its type, as those of torch's scaled_dot_product_attention are.
        out, lse: only where no gradient is needed, and not under torch.compile.
        dropout_p: without dropout_seed, dropout_offset and dropout_state, the state is drawn from torch's generator
            of the device of q, so that torch.manual_seed repeats it; see `dropout_state`.
        deterministic: left out, it is what torch.use_deterministic_algorithms says.

    A new `out` has tokens outside heads in memory, or inside, as q has them. All tensors are on one device; on a GPU
    the call is enqueued on torch's current stream there, and can be captured in a CUDA graph.

    Raises:
        ValueError, TypeError, NotImplementedError, MemoryError, RuntimeError: see `tilewise`. NotImplementedError also
            for other devices than the CPU and CUDA's, and for gradients that are not computed. RuntimeError also for
            second derivatives.
    """
    is_heads_first = heads_first(layout)
    makes_results = out is None and lse is None and out_dtype is None
    if makes_results and not is_dynamo_compiling() and forward_ad._current_level < 0:  # most calls end here
        result = eager(q, k, v, return_lse, is_heads_first, options, calls.Host.openmp, calls.TORCH)
        if result is not None:
            return result
    seen = _look(q, k, v, options)
    plain = bool(seen & PLAIN)
    if _is_any_autocast_enabled():
        q, k, v = _autocast(q, k, v)
    if options.get("dropout_p") and not any(options.get(name) is not None for name in DROPOUT):
        on_meta = q.is_meta  # which draws nothing
        drawn = torch.empty(2, dtype=torch.int64, device="meta") if on_meta else dropout_state(device=q.device)
        options["dropout_state"] = drawn
    if seen & STRIDES:
        q, k, v = _with_unit_stride("q", q), _with_unit_stride("k", k), _with_unit_stride("v", v)
    needs_grad = bool(seen & GRAD) and torch.is_grad_enabled() and _need_grad(q, k, v, options)
    if needs_grad and torch.are_deterministic_algorithms_enabled() and options.get("deterministic") is None:
        options["deterministic"] = True
    dtype = out_dtype if out_dtype is None else _dtype(out_dtype)

    if out is not None or lse is not None:
        written = {"out": out, "lse": lse}
        if needs_grad or not _look(q, k, v, written) & PLAIN or not plain or _autograd_follows(written):
            raise ValueError("out and lse are written in place, which neither autograd nor a compiler can follow")
        result = calls.forward(q, k, v, out, return_lse if lse is None else lse, dtype, is_heads_first, options)
        _count_writes(written)
        return result
    if not plain:
        both = ops.forward(q, k, v, dtype, is_heads_first, options)
        return both if return_lse else both[0]
    if needs_grad:
        bias, sink = options.get("bias"), options.get("sink")
        return _Attention.apply(q, k, v, bias, sink, return_lse, dtype, is_heads_first, options)
    return calls.forward(q, k, v, None, return_lse, dtype, is_heads_first, options)


def attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    *,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    return_lse: bool = False,
    out_dtype: torch.dtype | str | None = None,
    **options: Unpack[VarlenOptions],
) -> Any:
    """Attention of packed sequences: `tilewise.attention_varlen` with autograd, as `attention` here has it."""
    return attention(
        q,
        k,
        v,
        out=out,
        lse=lse,
        return_lse=return_lse,
        out_dtype=out_dtype,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        **options,
    )


def dropout_state(generator: torch.Generator | None = None, *, device: torch.device | str | None = None) -> Tensor:
    """int64 (2), a seed and an offset for `dropout_state=`, from the generator given or torch's own of the device.

    On the device of the generator, or the one given, or the CPU. Drawn on a GPU while a CUDA graph is captured, the
    numbers are new in each replay.
    """
    if device is None:
        device = "cpu" if generator is None else generator.device
    return torch.randint(2**62, (2,), generator=generator, device=device)


class _Attention(torch.autograd.Function):
    """The eager call with a gradient: the library itself, without the dispatcher."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        sink: Tensor | None,
        return_lse: bool,
        out_dtype: torch.dtype | None,
        is_heads_first: bool,
        options: Mapping[str, Any],
    ) -> Any:
        out, lse = calls.forward(q, k, v, None, True, out_dtype, is_heads_first, options)
        tensors = {name: value for name, value in options.items() if isinstance(value, Tensor)}
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, out, lse, *tensors.values())
        ctx.names = tuple(tensors)
        ctx.options = {name: value for name, value in options.items() if name not in tensors}
        ctx.is_heads_first = is_heads_first
        return (out, lse) if return_lse else out

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None = None) -> tuple[Tensor | None, ...]:
        if dout is None and dlse is None:
            return (None,) * 9
        for gradient in (dout, dlse):
            if gradient is not None and torch._C._functorch.is_legacy_batchedtensor(gradient):
                raise NotImplementedError(NO_TRANSFORMS)
        arrays = ctx.saved_tensors
        options = {**ctx.options, **dict(zip(ctx.names, arrays[5:], strict=True))}
        # Under create_graph by the operator, which refuses second derivatives where one is asked for.
        compute = ops.backward if torch.is_grad_enabled() or _is_watched() else calls.backward
        gradients = compute(dout, dlse, arrays[:5], ctx.needs_input_grad[:5], ctx.is_heads_first, options)
        return (*gradients, None, None, None, None)


def _dtype(given: Any) -> torch.dtype:
    found = getattr(torch, dtype_name(given) or "", None)
    if not isinstance(found, torch.dtype):
        raise TypeError(f"out_dtype is {given!r}; it takes a type of torch, or its name")
    return found


def _with_unit_stride(name: str, x: Tensor) -> Tensor:
    try:
        strides = x.stride()
        if not strides or strides[-1] == 1:
            return x
        return x.clone(memory_format=torch.contiguous_format)
    except RuntimeError:
        if x.layout is torch.strided and not x.is_nested:
            raise
        raise TypeError(f"{name} is a tensor without plain memory; tilewise.torch takes strided tensors") from None


def _autocast(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    device = q.device.type
    if not torch.is_autocast_enabled(device):
        return q, k, v
    dtype = torch.get_autocast_dtype(device)
    return tuple(x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x for x in (q, k, v))


def _need_grad(q: Tensor, k: Tensor, v: Tensor, options: Mapping[str, Any]) -> bool:
    needed: bool = q.requires_grad or k.requires_grad or v.requires_grad
    for name, value in options.items():
        if isinstance(value, Tensor) and value.requires_grad:
            if name not in DIFFERENTIABLE:
                raise NotImplementedError(f"{name} requires grad; there are gradients of q, k, v, bias and sink only")
            needed = True
    if needed:
        for name in ("prior_out", "batch_index_k"):
            if options.get(name) is not None:
                raise NotImplementedError(f"{name} is for calls without gradients; detach the tensors, or merge")
    return needed


def _autograd_follows(written: Mapping[str, Tensor | None]) -> bool:
    follows: bool = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in written.values())
    return follows


def _count_writes(written: Mapping[str, Tensor | None]) -> None:
    """So that a graph that saved one of these tensors earlier refuses its backward."""
    for x in written.values():
        if x is not None and not x.is_inference():
            torch.autograd.graph.increment_version(x)


def _look(q: Tensor, k: Tensor, v: Tensor, options: Mapping[str, Any]) -> int:
    """PLAIN, if all tensors are memory as it is and nothing looks on; GRAD and STRIDES, where there may be such.

    Raises for other arrays and devices.
    """
    seen: int = GRAD | STRIDES
    if not _is_watched():
        arrays: tuple[Any, ...] = (q, k, v)
        if options:
            arrays = (*arrays, *(x for name, x in options.items() if x is not None and name in ARRAYS))
        if calls.LENDS:
            seen = look(arrays, Tensor, Parameter) or seen
        elif all(type(x) in (Tensor, Parameter) and (x.is_cpu or x.is_cuda) and not x.is_neg() for x in arrays):
            seen |= PLAIN
    if not seen & PLAIN:
        _check_arrays({"q": q, "k": k, "v": v, **options})
    if forward_ad._current_level >= 0:
        _refuse_tangents({"q": q, "k": k, "v": v, **options})
    return seen


def _refuse_tangents(arguments: Mapping[str, Any]) -> None:
    for name, x in arguments.items():
        if isinstance(x, Tensor) and forward_ad.unpack_dual(x).tangent is not None:
            raise NotImplementedError(f"{name} has a tangent; tilewise.torch.attention has no forward-mode derivatives")


def _is_watched() -> bool:
    """Whether a compiler, a dispatch mode or a trace has to see the operation."""
    if is_dynamo_compiling():
        return True
    if peek_interpreter_stack() is not None:
        raise NotImplementedError(NO_TRANSFORMS)
    return bool(_len_torch_dispatch_stack()) or _get_tracing_state() is not None


def _check_arrays(arguments: Mapping[str, Any]) -> None:
    device = None
    for name, x in arguments.items():
        if name not in ARRAYS or (x is None and name not in REQUIRED):
            continue
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} is a {type(x).__name__}; tilewise.torch takes tensors")
        if x.device.type not in DEVICES:
            raise NotImplementedError(f"{name} is on {x.device}; tilewise.torch serves tensors of the CPU and CUDA")
        device = device or x.device
        if x.device != device:
            raise ValueError(f"{name} is on {x.device} but q is on {device}; all tensors are on one device")
