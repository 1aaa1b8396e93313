"""Tensors on a GPU that the tests share."""

from __future__ import annotations

from typing import Any

import pytest
import tilewise.torch
import torch
from torch import Tensor

two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


def qkv(requires_grad: bool = False, dtype: torch.dtype = torch.float32, device: str = "cuda") -> list[Tensor]:
    shapes = ((2, 70, 4, 64), (2, 90, 2, 64), (2, 90, 2, 64))
    return [torch.randn(shape, device=device).to(dtype).requires_grad_(requires_grad) for shape in shapes]


A_WHILE = 200_000_000  # cycles, a tenth of a second


def filled_late(tensors: list[Tensor]) -> list[Tensor]:
    """NaN, until the current stream has come to their numbers, which takes it a while."""
    late = [torch.full_like(x, torch.nan) for x in tensors]
    torch.cuda.synchronize(tensors[0].device)
    with torch.cuda.device(tensors[0].device):
        torch.cuda._sleep(A_WHILE)
    for x, y in zip(late, tensors, strict=True):
        x.copy_(y)
    return late


def both_passes(function: Any, tensors: list[Tensor], **options: Any) -> list[Tensor]:
    """out, lse and the gradients of the tensors."""
    out, lse = function(*tensors, return_lse=True, **options)
    return [out, lse, *torch.autograd.grad(out.square().sum() + lse.sum(), tensors)]


def attention(*tensors: Tensor, **options: Any) -> Any:
    return tilewise.torch.attention(*tensors, **options)


def assert_all_close(got: Any, expected: Any, tolerance: float = 1e-5) -> None:
    """Gradients may be summed in any order, so that two calls may differ in their last bits."""
    for x, y in zip(got, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance)
