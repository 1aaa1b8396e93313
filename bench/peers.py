"""Attention of others on the same CUDA tensors. Each is found by the name of its package; one that is missing says so.

A peer binds to the inputs of one cell, (B,S,H,D) tensors: it plans and allocates what it can, and gives back its
forward and its backward as calls without arguments. `results` are what they left, in the layout of the inputs.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable


class Missing(RuntimeError):
    """Why a peer cannot run here."""


@dataclass
class Inputs:
    q: Tensor
    k: Tensor
    v: Tensor
    dout: Tensor
    causal: bool


@dataclass
class Calls:
    name: str
    forward: Callable[[], object]
    backward: Callable[[], object] | None
    results: dict[str, Tensor] = field(default_factory=dict)  # "out", "dq", "dk", "dv"


def heads_first(x: Tensor) -> Tensor:
    return x.transpose(1, 2)


def _keep(calls: Calls, names: str, tensors: tuple[Tensor, ...]) -> None:
    calls.results.update(zip(names.split(), (heads_first(x) for x in tensors), strict=True))


def torch_flash(inputs: Inputs) -> Calls:
    """What scaled_dot_product_attention runs with SDPBackend.FLASH_ATTENTION: FlashAttention-2."""
    aten = torch.ops.aten
    q, k, v, dout = (heads_first(x) for x in (inputs.q, inputs.k, inputs.v, inputs.dout))
    saved = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, inputs.causal, False)
    out, lse, first_q, first_k, most_q, most_k, seed, offset, _ = saved

    def forward() -> None:
        _keep(calls, "out", aten._scaled_dot_product_flash_attention(q, k, v, 0.0, inputs.causal, False)[:1])

    def backward() -> None:
        lengths = (first_q, first_k, most_q, most_k)
        grads = aten._scaled_dot_product_flash_attention_backward(
            dout, q, k, v, out, lse, *lengths, 0.0, inputs.causal, seed, offset
        )
        _keep(calls, "dq dk dv", grads)

    calls = Calls("PyTorch flash", forward, backward)
    return calls


def torch_cudnn(inputs: Inputs) -> Calls:
    """What scaled_dot_product_attention runs with SDPBackend.CUDNN_ATTENTION."""
    aten = torch.ops.aten
    if not torch.backends.cudnn.is_available():
        raise Missing("this PyTorch has no cuDNN")
    q, k, v, dout = (heads_first(x) for x in (inputs.q, inputs.k, inputs.v, inputs.dout))

    def attention() -> tuple[Any, ...]:
        found: tuple[Any, ...] = aten._scaled_dot_product_cudnn_attention(
            q, k, v, None, True, 0.0, inputs.causal, False
        )
        return found

    try:
        out, lse, first_q, first_k, most_q, most_k, seed, offset, _ = attention()
    except RuntimeError as error:
        raise Missing(str(error).splitlines()[0]) from error

    def forward() -> None:
        _keep(calls, "out", attention()[:1])

    def backward() -> None:
        lengths = (first_q, first_k, most_q, most_k)
        grads = aten._scaled_dot_product_cudnn_attention_backward(
            dout, q, k, v, out, lse, seed, offset, None, *lengths, 0.0, inputs.causal
        )
        _keep(calls, "dq dk dv", grads)

    calls = Calls("PyTorch cuDNN", forward, backward)
    return calls


def flash_attention_3(inputs: Inputs) -> Calls:
    """The package fa3-fwd: the forward of FlashAttention-3."""
    try:
        importlib.import_module("fa3_fwd._C")  # registers torch.ops.fa3_fwd
    except ImportError as error:
        raise Missing(f"the package fa3-fwd: {error}") from error

    def forward() -> None:
        out = torch.ops.fa3_fwd.fwd(inputs.q, inputs.k, inputs.v, is_causal=inputs.causal, num_splits=1)[0]
        calls.results["out"] = out

    calls = Calls("FlashAttention-3", forward, None)
    return calls


PEERS: dict[str, Callable[[Inputs], Calls]] = {
    "flash": torch_flash,
    "cudnn": torch_cudnn,
    "fa3": flash_attention_3,
}
