"""What tilewise.torch.attention refuses, and how."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tilewise.torch
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from cases import assert_all_equal, on_meta, qkv


def test_second_derivatives_are_refused() -> None:
    q, k, v = qkv(requires_grad=True)
    first = torch.autograd.grad(tilewise.torch.attention(q, k, v).sum(), q, create_graph=True)[0]
    assert_all_equal([first], torch.autograd.grad(tilewise.torch.attention(q, k, v).sum(), [q]))
    with pytest.raises(RuntimeError, match="second derivatives"):
        first.sum().backward()


def test_transforms_are_refused() -> None:
    q, k, v = qkv()
    with pytest.raises(NotImplementedError, match=r"torch\.vmap"):
        torch.vmap(lambda x: tilewise.torch.attention(x, x, x))(q[None])
    with pytest.raises(NotImplementedError, match=r"torch\.func"):
        torch.func.grad(lambda x: tilewise.torch.attention(x, k, v).sum())(q)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (lambda q, k, v: (q.int(), k.int(), v.int()), ValueError, "q.dtype is int32"),
        (lambda q, k, v: (q, k.half(), v), ValueError, "k.dtype is fp16 but q.dtype is fp32"),
        (lambda q, k, v: (q.double(), k.double(), v.double()), TypeError, "q has type float64;"),
        (lambda q, k, v: (q[0, 0], k, v), ValueError, "q has 2 axes; it takes 3 to 4"),
        (lambda q, k, v: (q.sum(), k, v), ValueError, "q has 0 axes; it takes 3 to 4"),
        (lambda q, k, v: (q[0], k, v), ValueError, "needs cu_seqlens_q"),
        (lambda q, k, v: (q[:, :, :3], k, v), ValueError, "3"),
        (lambda q, k, v: (q, k[..., :8], v), ValueError, "k"),
        (lambda q, k, v: (q.numpy(), k, v), TypeError, "q is a ndarray; tilewise.torch takes tensors"),
        (lambda q, k, v: (q, on_meta(k), v), ValueError, "k is on meta but q is on cpu"),
        (lambda q, k, v: (on_meta(q), k, v), ValueError, "k is on cpu but q is on meta"),
        (lambda q, k, v: (q.to_sparse(), k, v), TypeError, "q is a tensor without plain memory"),
    ],
)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_bad_tensors(requires_grad: bool, change: Any, kind: type[Exception], message: str) -> None:
    q, k, v = change(*qkv())
    if requires_grad and isinstance(q, Tensor) and q.is_floating_point():
        q.requires_grad_()
    with pytest.raises(kind, match=message):
        tilewise.torch.attention(q, k, v)


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("autocast", [False, True])
def test_other_arrays_are_refused(layout: Any, autocast: bool) -> None:
    q, k, v = qkv()
    with torch.autocast("cpu", enabled=autocast), pytest.raises(TypeError, match="q is a ndarray"):
        tilewise.torch.attention(q.numpy(), k, v, layout=layout)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"casual": True}, TypeError, "no keyword 'casual'; did you mean causal"),
        ({"stream": 7}, TypeError, "no keyword 'stream' in tilewise.torch, which follows torch's current stream"),
        ({"attn_mask": torch.ones(9, 11)}, TypeError, "no keyword 'attn_mask'; here it is mask"),
        ({"softmax_scale": float("nan")}, ValueError, "softmax_scale"),
        ({"mask": np.ones((9, 11), bool)}, TypeError, "mask is a ndarray"),
        ({"mask": torch.ones(9, 11)}, ValueError, "mask.dtype is fp32: .* is bias"),
        ({"bias": torch.ones(9, 12)}, ValueError, "bias"),
        ({"alibi_slopes": torch.ones(4, requires_grad=True)}, NotImplementedError, "alibi_slopes requires grad"),
        ({"sink": torch.ones(4, dtype=torch.bfloat16)}, ValueError, "sink"),
        ({"layout": "sbhd"}, ValueError, "layout is 'sbhd'"),
        ({"dropout_p": 1.0}, ValueError, "dropout_p"),
        ({"out_dtype": "float7"}, TypeError, "out_dtype"),
        ({"block_table": torch.zeros(2, 1, dtype=torch.int32)}, NotImplementedError, "block_table"),
    ],
)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_bad_options(requires_grad: bool, options: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        tilewise.torch.attention(*qkv(requires_grad), **options)


def test_forward_only_options_refuse_gradients() -> None:
    q, k, v = qkv(requires_grad=True)
    prior = {"prior_out": torch.zeros(2, 9, 4, 16), "prior_lse": torch.full((2, 4, 9), -torch.inf)}
    with pytest.raises(NotImplementedError, match="prior_out is for calls without gradients"):
        tilewise.torch.attention(q, k, v, **prior)
    with torch.no_grad():
        assert torch.equal(tilewise.torch.attention(q, k, v, **prior), tilewise.torch.attention(q, k, v))


def test_other_devices_are_refused() -> None:
    with FakeTensorMode(), pytest.raises(NotImplementedError, match=r"q is on xpu:0; tilewise\.torch serves"):
        tilewise.torch.attention(*(torch.empty(1, 9, 2, 16, device="xpu") for _ in range(3)))
