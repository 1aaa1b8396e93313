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

from tilewise import _torch_calls as calls
from tilewise import _torch_ops as ops
from tilewise._attention import Layout, dtype_name, heads_first

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tilewise._options import Options

__all__ = ["attention", "dropout_state"]

DEVICES = ("cpu", "meta")  # that the operators have kernels for
DIFFERENTIABLE = ("bias", "sink")  # of the options


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
            of the CPU, so that torch.manual_seed repeats it; see `dropout_state`.

    A new `out` has tokens outside heads in memory, or inside, as q has them.

    Raises:
        ValueError, TypeError, NotImplementedError, MemoryError: see `tilewise`. NotImplementedError also for other
            devices than the CPU and for gradients that are not computed. RuntimeError for second derivatives.
    """
    is_heads_first = layout != "bshd" and heads_first(layout)
    if torch._C._is_any_autocast_enabled():
        q, k, v = _autocast(q, k, v)
    plain = _check(q, k, v, options)
    q, k, v = _with_unit_stride(q), _with_unit_stride(k), _with_unit_stride(v)
    if options.get("dropout_p") and not any(
        options.get(name) is not None for name in ("dropout_seed", "dropout_offset", "dropout_state")
    ):
        options["dropout_state"] = dropout_state()
    dtype = None if out_dtype is None else getattr(torch, dtype_name(out_dtype) or "")
    needs_grad = torch.is_grad_enabled() and _needs_grad(q, k, v, options)

    if out is not None or lse is not None:
        if needs_grad or not plain:
            raise ValueError("out and lse are written in place, which neither autograd nor a compiler can follow")
        out = calls.empty_along(q, v.shape[-1], dtype) if out is None else out
        lse = calls.empty_lse(q, is_heads_first) if lse is None and return_lse else lse
        calls.into(q, k, v, out, lse, is_heads_first, options)
        return out if lse is None else (out, lse)
    if not plain:
        both = ops.forward(q, k, v, dtype, is_heads_first, options)
        return both if return_lse else both[0]
    if needs_grad:
        bias, sink = options.get("bias"), options.get("sink")
        return _Attention.apply(q, k, v, bias, sink, return_lse, dtype, is_heads_first, options)
    result = calls.forward(q, k, v, return_lse, dtype, is_heads_first, options)
    return result if return_lse else result[0]


def dropout_state(generator: torch.Generator | None = None) -> Tensor:
    """int64 (2), a seed and an offset for `dropout_state=`, from torch's generator of the CPU or the one given."""
    return torch.randint(2**62, (2,), generator=generator)


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
        options: dict[str, Any],
    ) -> Any:
        out, lse = calls.forward(q, k, v, True, out_dtype, is_heads_first, options)
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
        arrays = ctx.saved_tensors
        options = {**ctx.options, **dict(zip(ctx.names, arrays[5:], strict=True))}
        # Under create_graph by the operator, which refuses second derivatives where one is asked for.
        compute = ops.backward if torch.is_grad_enabled() else calls.backward
        gradients = compute(dout, dlse, arrays[:5], ctx.needs_input_grad[:5], ctx.is_heads_first, options)
        return (*gradients, None, None, None, None)


def _with_unit_stride(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _autocast(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    device = q.device.type
    if not torch.is_autocast_enabled(device):
        return q, k, v
    dtype = torch.get_autocast_dtype(device)
    return tuple(x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x for x in (q, k, v))


def _needs_grad(q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> bool:
    needed = q.requires_grad or k.requires_grad or v.requires_grad
    for name in options:
        value = options[name]
        if isinstance(value, Tensor) and value.requires_grad:
            if name not in DIFFERENTIABLE:
                raise NotImplementedError(f"{name} requires grad; there are gradients of q, k, v, bias and sink only")
            needed = True
    if needed:
        for name in ("prior_out", "batch_index_k"):
            if options.get(name) is not None:
                raise NotImplementedError(f"{name} is for calls without gradients; detach the tensors, or merge")
    return needed


def _check(q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> bool:
    """Whether the tensors are plain memory and nothing looks on. Raises for other arrays and devices."""
    plain = not _is_watched()
    plain = _check_array("q", q, q, plain)
    plain = _check_array("k", k, q, plain)
    plain = _check_array("v", v, q, plain)
    for name in options:
        if name in ops.TENSORS and options[name] is not None:
            plain = _check_array(name, options[name], q, plain)
    return plain


def _is_watched() -> bool:
    """Whether a compiler, a dispatch mode or a trace has to see the operation."""
    if torch.compiler.is_compiling():
        return True
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise NotImplementedError(
            "tilewise.torch.attention takes no part in torch.func and torch.vmap; use torch.autograd, and fold a"
            " mapped axis into B"
        )
    return torch._C._len_torch_dispatch_stack() > 0 or torch._C._get_tracing_state() is not None


def _check_array(name: str, x: Any, q: Tensor, plain: bool) -> bool:
    """`plain` if this tensor is plain memory too."""
    kind = type(x)
    if (kind is Tensor or kind is torch.nn.Parameter) and x.is_cpu and q.is_cpu:
        return plain and not x.is_neg()
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} is a {kind.__name__}; tilewise.torch takes tensors")
    if x.device.type not in DEVICES:
        raise NotImplementedError(f"{name} is on {x.device}; tilewise.torch serves tensors of the CPU")
    if x.device != q.device:
        raise ValueError(f"{name} is on {x.device} but q is on {q.device}; all tensors are on one device")
    return False
