"""Values and gradients of tilewise.torch.attention against eager math in fp64, for every option, by both ways there."""

from __future__ import annotations

from typing import Any

import pytest
import tilewise.torch
import torch
import torch_oracle as oracle
from torch import Tensor
from torch_check import check, drawn

from cases import CASES, HK, SK, B, Case


@pytest.fixture(params=["eager", "operator"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Straight to the library, or by torch.ops as under a compiler."""
    if request.param == "operator":
        monkeypatch.setattr(tilewise.torch, "eager", lambda *_: None)
        monkeypatch.setattr(tilewise.torch, "_is_watched", lambda: True)
    return str(request.param)


@pytest.mark.parametrize("name", CASES)
def test_option(name: str, way: str) -> None:
    torch.manual_seed(1)
    check(CASES[name](), torch.float32, "bshd")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["plain", "together", "mask", "packed", "sink", "bias that repeats"])
def test_type(name: str, dtype: torch.dtype, way: str) -> None:
    torch.manual_seed(2)
    check(CASES[name](), dtype, "bshd")


@pytest.mark.parametrize("name", ["plain", "together", "mask", "sink", "packed"])
def test_layout_bhsd(name: str, way: str) -> None:
    torch.manual_seed(3)
    check(CASES[name](), torch.float32, "bhsd")


@pytest.mark.parametrize("source", ["seed", "state", "torch's generator"])
def test_dropout(source: str, way: str) -> None:
    """Which pairs are kept shows with V = 1 at one key each; with those the rest is as without dropout."""
    torch.manual_seed(4)
    q, k, _ = drawn(Case({}, oracle.Terms()), torch.float32)
    options: dict[str, Any] = {"dropout_p": 0.3}
    if source == "seed":
        options |= {"dropout_seed": 2**64 - 5, "dropout_offset": 7}
    elif source == "state":
        options |= {"dropout_state": tilewise.torch.dropout_state(), "dropout_offset": 3}
    one_hot = torch.eye(SK)[None, :, None, :].expand(B, SK, HK, SK).contiguous()
    torch.manual_seed(5)
    dropped = tilewise.torch.attention(q, k, one_hot, **options).transpose(1, 2)
    weights = tilewise.torch.attention(q, k, one_hot).transpose(1, 2)
    keep = (dropped / weights).double()
    factor = 65536 / (65536 - round(0.3 * 65536))
    assert ((keep == 0) | ((keep - factor).abs() < 1e-5)).all()
    assert 0.6 < (keep != 0).double().mean() < 0.8

    terms = oracle.Terms(keep=torch.where(keep == 0, 0.0, factor))
    check(Case(options, terms), torch.float32, "bshd")


def test_dropout_follows_manual_seed(way: str) -> None:
    q = torch.randn(1, 8, 2, 16)

    def call() -> Tensor:
        result: Tensor = tilewise.torch.attention(q, q, q, dropout_p=0.5)
        return result

    torch.manual_seed(0)
    first, second = call(), call()
    torch.manual_seed(0)
    assert torch.equal(call(), first)
    assert torch.equal(call(), second)
    assert not torch.equal(first, second)


def test_gradients_by_finite_differences() -> None:
    """The float32 function itself, along random directions."""
    torch.manual_seed(6)
    q, k, v = (torch.randn(1, 5, 2, 8, requires_grad=True) for _ in range(3))
    direction = [torch.randn_like(x) for x in (q, k, v)]

    def loss(step: float) -> Tensor:
        moved = [x + step * d for x, d in zip((q, k, v), direction, strict=True)]
        out, lse = tilewise.torch.attention(*moved, causal=True, return_lse=True)
        return out.double().pow(2).sum() + lse.double().sum()

    slope = sum((g * d).sum() for g, d in zip(torch.autograd.grad(loss(0), (q, k, v)), direction, strict=True))
    with torch.no_grad():
        numeric = (loss(1e-2) - loss(-1e-2)) / 2e-2
    assert abs(float(slope) - float(numeric)) < 1e-3 * (1 + abs(float(numeric)))
