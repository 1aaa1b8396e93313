"""Values and gradients on a GPU against eager math in fp64, and against the CPU's."""

from __future__ import annotations

import math
from typing import Any

import pytest
import tilewise.torch
import torch
from on_gpu import both_passes, qkv
from torch import Tensor
from torch_check import check

from cases import CASES


@pytest.mark.parametrize("way", ["eager", "operator"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_option(name: str, dtype: torch.dtype, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "operator":
        monkeypatch.setattr(tilewise.torch, "eager", lambda *_: None)
        monkeypatch.setattr(tilewise.torch, "_is_watched", lambda: True)
    torch.manual_seed(1)
    check(CASES[name](), dtype, "bshd", "cuda")


@pytest.mark.parametrize("name", ["plain", "together", "mask", "sink", "packed"])
def test_layout_bhsd(name: str) -> None:
    torch.manual_seed(3)
    check(CASES[name](), torch.float32, "bhsd", "cuda")


def standard_attention(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Scores in memory, in the type of q; softmax in fp32 at least."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
    return torch.softmax(scores, -1, dtype=torch.promote_types(q.dtype, torch.float32)).to(q.dtype) @ v


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_beside_standard_attention(dtype: torch.dtype, head_dim: int, causal: bool) -> None:
    """At sizes of many tiles, with fp64 as the truth and the error of standard attention as the yardstick."""
    tensors = [torch.randn(2, 4, 300, head_dim, device="cuda").to(dtype) for _ in range(3)]
    dout = torch.randn_like(tensors[0])

    def results(function: Any, of: torch.dtype, **options: Any) -> list[Tensor]:
        leaves = [x.to(of, copy=True).requires_grad_() for x in tensors]
        out = function(*leaves, causal=causal, **options)
        return [out, *torch.autograd.grad(out, leaves, dout.to(of))]

    ours = results(tilewise.torch.attention, dtype, layout="bhsd")
    exact, standard = results(standard_attention, torch.float64), results(standard_attention, dtype)
    for x, y, z in zip(ours, standard, exact, strict=True):
        error, yardstick = ((of.double() - z).abs().max().item() for of in (x, y))
        assert error <= 2 * yardstick + 1e-5


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"dropout_p": 0.4, "dropout_seed": 9, "dropout_offset": 3}])
def test_the_same_as_on_the_cpu(options: dict[str, Any]) -> None:
    """Dropout too: its bits are the same everywhere."""
    tensors = qkv(requires_grad=True)
    on_cpu = [x.detach().cpu().requires_grad_() for x in tensors]
    got = both_passes(tilewise.torch.attention, tensors, **options)
    for x, y in zip(got, both_passes(tilewise.torch.attention, on_cpu, **options), strict=True):
        torch.testing.assert_close(x.cpu(), y, rtol=1e-4, atol=1e-4)


# Of 16-bit types P is rounded to the type, relative to a maximum that differs from part to part.
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 4e-3)], ids=str)
def test_partial_results(dtype: torch.dtype, tolerance: float) -> None:
    """fp32 results over parts, merged on the GPU, and by prior_out."""
    q, k, v = qkv(dtype=dtype)
    whole = tilewise.attention(q, k, v, out_dtype="float32")
    parts = [tilewise.attention_partial(q, k[:, at], v[:, at]) for at in (slice(0, 33), slice(33, 90))]
    merged, _ = tilewise.merge([x[0] for x in parts], [x[1] for x in parts])
    assert merged.is_cuda
    torch.testing.assert_close(merged, whole, rtol=tolerance, atol=tolerance)
    after, _ = tilewise.attention_partial(q, k[:, 33:], v[:, 33:], prior_out=parts[0][0], prior_lse=parts[0][1])
    torch.testing.assert_close(after, whole, rtol=tolerance, atol=tolerance)
