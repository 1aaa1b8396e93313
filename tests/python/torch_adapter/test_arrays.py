"""Tensors in the calls of `tilewise` itself, which know arrays of any library and no autograd."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tilewise
import torch
from torch import Tensor


def qkv() -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape) for shape in ((2, 9, 4, 16), (2, 11, 2, 16), (2, 11, 2, 16))]


def test_results_are_tensors() -> None:
    tensors = qkv()
    out, lse = tilewise.attention(*tensors, causal=True, return_lse=True)
    assert isinstance(out, Tensor)
    expected = tilewise.attention(*(x.numpy() for x in tensors), causal=True)
    assert np.array_equal(out.numpy(), expected)
    merged, _ = tilewise.merge([out, out], [lse, torch.full_like(lse, -torch.inf)])
    assert torch.equal(merged, out)
    short = [x.to(torch.bfloat16) for x in tensors]
    assert tilewise.attention(*short).dtype is torch.bfloat16
    assert tilewise.attention(*short, out_dtype=torch.float32).dtype is torch.float32


class Derived(Tensor):
    pass


def test_results_of_derived_tensors() -> None:
    q, k, v = qkv()
    out, lse = tilewise.attention(q.as_subclass(Derived), k, v, return_lse=True)
    assert isinstance(out, Tensor)
    merged, _ = tilewise.merge([out.as_subclass(Derived)] * 2, [lse, torch.full_like(lse, -torch.inf)])
    assert torch.equal(merged, out)


def test_negated_views_are_refused() -> None:
    q, k, v = qkv()
    lazy = torch._neg_view(q)
    for act in (
        lambda: tilewise.attention(lazy, k, v),
        lambda: tilewise.attention_backward(q, lazy, k, v, q, torch.zeros(2, 4, 9)),
    ):
        with pytest.raises(ValueError, match=r"^q is a view that torch negates"):
            act()
    with pytest.raises(ValueError, match=r"^out is a view that torch negates"):
        tilewise.attention(q, k, v, out=torch._neg_view(torch.empty_like(q)))


@pytest.mark.parametrize("change", [Tensor.to_sparse, Tensor.to_mkldnn, lambda x: x.to("meta")])
def test_tensors_without_plain_memory(change: Any) -> None:
    q, k, v = qkv()
    with pytest.raises(TypeError, match=r"^k is a Tensor without plain memory: [^\n]*$"):
        tilewise.attention(q, change(k), v)


NEED_GRAD = [
    ("q", lambda x, q, k, v: tilewise.attention(x(q), k, v)),
    ("v", lambda x, q, k, v: tilewise.attention(q, k, x(v), causal=True)),
    ("bias", lambda x, q, k, v: tilewise.attention(q, k, v, bias=x(torch.zeros(9, 11)))),
    ("sink", lambda x, q, k, v: tilewise.attention(q, k, v, sink=x(torch.zeros(4)))),
    ("alibi_slopes", lambda x, q, k, v: tilewise.attention(q, k, v, alibi_slopes=x(torch.ones(4)))),
    ("out", lambda x, q, k, v: tilewise.attention(q, k, v, out=x(torch.empty_like(q)))),
    ("k", lambda x, q, k, v: tilewise.attention_partial(q, x(k), v)),
    ("sink", lambda x, q, k, v: tilewise.attention_partial(q, k, v, sink=x(torch.zeros(4)))),
    ("out_parts", lambda x, q, k, v: tilewise.merge([x(q), q], [torch.zeros(2, 4, 9)] * 2)),
    ("lse_parts", lambda x, q, k, v: tilewise.merge(torch.stack([q, q]), x(torch.zeros(2, 2, 4, 9)))),
]


@pytest.mark.parametrize(("name", "act"), NEED_GRAD)
def test_gradients_are_never_lost(name: str, act: Any) -> None:
    act(lambda x: x, *qkv())
    with pytest.raises(ValueError, match=f"^{name} requires grad"):
        act(lambda x: x.requires_grad_(), *qkv())
