"""Values and gradients of tilewise.torch.attention against eager math in fp64, for every option, by both ways there."""

from __future__ import annotations

from typing import Any

import pytest
import tilewise.torch
import torch
import torch_oracle as oracle
from torch import Tensor
from torch_rounding import UNIT, Roundings, assert_close

from cases import CASES, DV, HK, SK, SQ, B, Case, D, H


@pytest.fixture(params=["eager", "operator"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Straight to the library, or by torch.ops as under a compiler."""
    if request.param == "operator":
        monkeypatch.setattr(tilewise.torch, "_is_watched", lambda: True)
    return str(request.param)


def drawn(case: Case, dtype: torch.dtype) -> list[Tensor]:
    """q, k and v as (B,S,H,.)."""
    batch, rows, keys = (1, *case.packed) if case.packed else (B, SQ, SK)
    return [
        torch.randn(shape).to(dtype)
        for shape in ((batch, rows, H, D), (batch, keys, HK, D), (batch, keys, HK, DV))
    ]  # fmt: skip


def by_definition(case: Case, qkv: list[Tensor], grads: tuple[Tensor, Tensor], dtype: torch.dtype) -> list[Tensor]:
    """out, lse and the gradients, in fp64 or in the type of q."""

    def leaf(x: Tensor) -> Tensor:
        return (x.double() if dtype == torch.float64 else x.clone()).requires_grad_()

    leaves = [leaf(x) for x in qkv]
    bias, sink = (None if x is None else leaf(x) for x in (case.bias, case.sink))
    both = oracle.attention(*leaves, bias, sink, case.terms)
    return [*both, *oracle.gradients(both, grads, [*leaves, *(x for x in (bias, sink) if x is not None)])]


def ours(case: Case, qkv: list[Tensor], grads: tuple[Tensor, Tensor], layout: Any) -> list[Tensor]:
    """out, lse and the gradients, as (B,S,H,.)."""
    leaves = [x.clone().requires_grad_() for x in qkv]
    given = [x[0] if case.rank == 3 else x.transpose(1, 2) if layout == "bhsd" else x for x in leaves]
    learned = {"bias": case.bias, "sink": case.sink}
    extra = {name: x.clone().requires_grad_() for name, x in learned.items() if x is not None}
    torch.manual_seed(5)  # dropout may draw
    out, lse = tilewise.torch.attention(*given, layout=layout, return_lse=True, **case.options, **extra)
    assert out.dtype == qkv[0].dtype
    assert lse.dtype == torch.float32
    if case.rank == 3:
        out, lse = out[None], lse[None]
    elif layout == "bhsd":
        out = out.transpose(1, 2)
    return [out, lse, *oracle.gradients((out, lse), grads, [*leaves, *extra.values()])]


def check(case: Case, dtype: torch.dtype, layout: str) -> None:
    """Contract C8, for every result."""
    qkv = drawn(case, dtype)
    dout = torch.randn(*qkv[0].shape[:3], DV).to(dtype)
    dlse = torch.randn(qkv[0].shape[0], H, qkv[0].shape[1])
    computed = ours(case, qkv, (dout, dlse), layout)
    exact, standard = (by_definition(case, qkv, (dout, dlse), of) for of in (torch.float64, dtype))
    roundings = Roundings(*qkv, case.bias, case.sink, case.terms).of_results(*exact[:2], dout.double(), dlse.double())
    for (name, rounding), *values in zip(roundings.items(), computed, exact, standard, strict=True):
        assert_close(name, *values, rounding, UNIT[dtype])


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
