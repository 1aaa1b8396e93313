"""Values and gradients of tilewise.torch.attention against eager math in fp64."""

from __future__ import annotations

from typing import Any

import tilewise.torch
import torch
import torch_oracle as oracle
from torch import Tensor
from torch_rounding import UNIT, Roundings, assert_close

from cases import DV, HK, SK, SQ, B, Case, D, H


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


def ours(case: Case, qkv: list[Tensor], grads: tuple[Tensor, Tensor], layout: Any, device: str) -> list[Tensor]:
    """out, lse and the gradients, as (B,S,H,.)."""

    def there(x: Any) -> Any:
        return x.to(device) if isinstance(x, Tensor) else x

    leaves = [there(x.clone()).requires_grad_() for x in qkv]
    given = [x[0] if case.rank == 3 else x.transpose(1, 2) if layout == "bhsd" else x for x in leaves]
    learned = {"bias": case.bias, "sink": case.sink}
    extra = {name: there(x.clone()).requires_grad_() for name, x in learned.items() if x is not None}
    options = {name: there(x) for name, x in case.options.items()}
    torch.manual_seed(5)  # dropout may draw
    out, lse = tilewise.torch.attention(*given, layout=layout, return_lse=True, **options, **extra)
    assert out.device.type == device
    assert out.dtype == qkv[0].dtype
    assert lse.dtype == torch.float32
    if case.rank == 3:
        out, lse = out[None], lse[None]
    elif layout == "bhsd":
        out = out.transpose(1, 2)
    dout, dlse = (x.to(device) for x in grads)
    gradients = oracle.gradients((out, lse), (dout, dlse), [*leaves, *extra.values()])
    return [x.detach().cpu() for x in (out, lse, *gradients)]


def check(case: Case, dtype: torch.dtype, layout: str, device: str = "cpu") -> None:
    """Contract C8, for every result."""
    qkv = drawn(case, dtype)
    dout = torch.randn(*qkv[0].shape[:3], DV).to(dtype)
    dlse = torch.randn(qkv[0].shape[0], H, qkv[0].shape[1])
    computed = ours(case, qkv, (dout, dlse), layout, device)
    exact, standard = (by_definition(case, qkv, (dout, dlse), of) for of in (torch.float64, dtype))
    roundings = Roundings(*qkv, case.bias, case.sink, case.terms).of_results(*exact[:2], dout.double(), dlse.double())
    for (name, rounding), *values in zip(roundings.items(), computed, exact, standard, strict=True):
        assert_close(name, *values, rounding, UNIT[dtype])
