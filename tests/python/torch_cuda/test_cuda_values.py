"""Values and gradients on a GPU against eager math in fp64, and against the CPU's."""

from __future__ import annotations

from typing import Any

import pytest
import tilewise.torch
import torch
from on_gpu import both_passes, qkv
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


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_beside_torch(dtype: torch.dtype, head_dim: int, causal: bool) -> None:
    """At sizes of many tiles, with torch's math back end in fp64 as the truth and its own error as the yardstick."""
    tensors = [torch.randn(2, 4, 300, head_dim, device="cuda").to(dtype).requires_grad_() for _ in range(3)]
    dout = torch.randn_like(tensors[0])

    def results(of: torch.dtype | None) -> Any:
        leaves = [x.detach().to(of or dtype).requires_grad_() for x in tensors]
        if of is None:
            out = tilewise.torch.attention(*leaves, causal=causal, layout="bhsd")
        else:
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
                out = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=causal)
        return [out, *torch.autograd.grad(out, leaves, dout.to(out.dtype))]

    for ours, exact, standard in zip(results(None), results(torch.float64), results(dtype), strict=True):
        error, yardstick = ((x.double() - exact).abs().max().item() for x in (ours, standard))
        assert error <= 2 * yardstick + 1e-5


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"dropout_p": 0.4, "dropout_seed": 9, "dropout_offset": 3}])
def test_the_same_as_on_the_cpu(options: dict[str, Any]) -> None:
    """Dropout too: its bits are the same everywhere."""
    tensors = qkv(requires_grad=True)
    on_cpu = [x.detach().cpu().requires_grad_() for x in tensors]
    got = both_passes(tilewise.torch.attention, tensors, **options)
    for x, y in zip(got, both_passes(tilewise.torch.attention, on_cpu, **options), strict=True):
        torch.testing.assert_close(x.cpu(), y, rtol=1e-4, atol=1e-4)


def test_partial_results() -> None:
    """fp32 results over parts, merged on the GPU, and by prior_out."""
    q, k, v = qkv(dtype=torch.bfloat16)
    whole = tilewise.attention(q, k, v, out_dtype="float32")
    parts = [tilewise.attention_partial(q, k[:, at], v[:, at]) for at in (slice(0, 33), slice(33, 90))]
    merged, _ = tilewise.merge([x[0] for x in parts], [x[1] for x in parts])
    assert merged.is_cuda
    torch.testing.assert_close(merged, whole, rtol=1e-5, atol=1e-5)
    after, _ = tilewise.attention_partial(q, k[:, 33:], v[:, 33:], prior_out=parts[0][0], prior_lse=parts[0][1])
    torch.testing.assert_close(after, whole, rtol=1e-5, atol=1e-5)
