"""Attention through the raw C interface, on torch tensors of any stride; they are never copied.

The oracles use this and not the Python package, so that what they find wrong lies in the library itself. Outputs hold
NaN before the call: whatever it leaves out shows.
"""

import ctypes
import dataclasses

import c_interface as tw
import torch

TOP_LEFT, WINDOW_LEFT, WINDOW_RIGHT, SOFTMAX_SCALE = 1 << 1, 1 << 2, 1 << 3, 1 << 4
BOOL, I32 = 7, 8
DTYPES = {torch.float32: tw.F32, torch.float16: tw.F16, torch.bfloat16: tw.BF16, torch.bool: BOOL, torch.int32: I32}


def c_tensor(x: torch.Tensor | None) -> tw.Tensor:
    """x as it lies in memory; None is an absent tensor."""
    if x is None:
        return tw.Tensor()
    axes = 4 - x.dim()
    tensor = tw.Tensor(data=x.data_ptr(), dtype=DTYPES[x.dtype])
    tensor.shape[:] = [*x.shape, *[1] * axes]
    tensor.stride[:] = [*x.stride(), *[1] * axes]
    return tensor


def poison(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.full(shape, float("nan"), dtype=dtype)


def poison_like(x: torch.Tensor) -> torch.Tensor:
    """In the layout of x, as far as that has no gaps and repeats nothing."""
    return torch.full_like(x, float("nan"), memory_format=torch.preserve_format)


@dataclasses.dataclass
class Problem:
    """q (B,Sq,H,D), k (B,Sk,Hk,D), v (B,Sk,Hk,Dv). B, H and Sq of mask, bias (B,H,Sq,Sk) and q_positions may be 1."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    flags: int = 0
    scale: float | None = None
    softcap: float = 0
    window_left: int | None = None
    window_right: int | None = None
    mask: torch.Tensor | None = None  # bool, true = live
    bias: torch.Tensor | None = None
    seqused_k: torch.Tensor | None = None  # (B) int32
    q_positions: torch.Tensor | None = None  # (B,Sq) int32


def c_problem(p: Problem, out: torch.Tensor, lse: torch.Tensor) -> tw.Attention:
    c = tw.init(tw.Attention)
    c.device_type, c.threads, c.flags, c.softcap = tw.CPU, 1, p.flags, p.softcap
    for flag, field in ((SOFTMAX_SCALE, "scale"), (WINDOW_LEFT, "window_left"), (WINDOW_RIGHT, "window_right")):
        if getattr(p, field) is not None:
            c.flags |= flag
            setattr(c, "softmax_scale" if field == "scale" else field, getattr(p, field))
    for field in ("q", "k", "v", "mask", "bias", "seqused_k", "q_positions"):
        setattr(c, field, c_tensor(getattr(p, field)))
    c.out, c.lse = c_tensor(out), c_tensor(lse)
    return c


def forward(library: tw.Library, p: Problem) -> tuple[torch.Tensor, torch.Tensor]:
    """out (B,Sq,H,Dv) with heads outside where q has them so, lse (B,H,Sq)."""
    batch, rows, heads, _ = p.q.shape
    heads_outside = heads > 1 and rows > 1 and p.q.stride(2) > p.q.stride(1)
    if heads_outside:
        out = poison((batch, heads, rows, p.v.shape[-1]), p.q.dtype).transpose(1, 2)
    else:
        out = poison((batch, rows, heads, p.v.shape[-1]), p.q.dtype)
    lse = poison((batch, heads, rows), torch.float32)
    library.check(library.lib.tw_attention_forward(ctypes.byref(c_problem(p, out, lse)), None))
    return out, lse


def backward(
    library: tw.Library, p: Problem, out: torch.Tensor, lse: torch.Tensor, dout: torch.Tensor
) -> dict[str, torch.Tensor]:
    """The gradients of q, k, v and, if there is one, of bias, each in the type of its tensor."""
    inputs = {"q": p.q, "k": p.k, "v": p.v} | ({} if p.bias is None else {"bias": p.bias})
    gradients = {name: poison_like(x) for name, x in inputs.items()}
    c = tw.init(tw.AttentionGrad)
    c.dout = c_tensor(dout)
    for name, gradient in gradients.items():
        setattr(c, f"d{name}", c_tensor(gradient))
    problem = c_problem(p, out, lse)
    library.check(library.lib.tw_attention_backward(ctypes.byref(problem), ctypes.byref(c), None))
    return gradients
