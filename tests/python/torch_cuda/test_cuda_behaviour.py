"""tilewise.torch.attention as a citizen of PyTorch on a GPU: strides, autocast, dropout, determinism, refusals."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import numpy as np
import pytest
import tilewise.torch
import torch
from on_gpu import assert_all_close, attention, both_passes, qkv
from torch import Tensor


def test_strides() -> None:
    together = torch.randn(2, 9, 3, 4, 16, device="cuda")
    expanded = torch.randn(1, 9, 1, 16, device="cuda").expand(2, 9, 4, 16)
    sliced = torch.randn(2, 18, 8, 41, device="cuda")[:, ::2, 1::2, 3:19]  # rows that no vector load may begin at
    outside = torch.randn(4, 2, 9, 16, device="cuda").movedim(0, 2)
    for given in (together.unbind(2), (together[:, :, 0], expanded, sliced), (sliced, sliced, outside)):
        for dtype in (torch.float32, torch.bfloat16):
            leaves = [x.detach().to(dtype).requires_grad_() for x in given]
            dense = [x.detach().contiguous().requires_grad_() for x in leaves]
            assert_all_close(both_passes(attention, leaves), both_passes(attention, dense), 1e-2)
            out = attention(*leaves)
            for dout in (
                torch.ones((), device="cuda", dtype=dtype).expand_as(out),
                torch.randn_like(out).mT.contiguous().mT,
            ):
                expected = torch.autograd.grad(attention(*dense), dense, dout.contiguous())
                assert_all_close(torch.autograd.grad(attention(*leaves), leaves, dout), expected, 1e-2)


@pytest.mark.parametrize("to", [torch.float16, torch.bfloat16])
def test_autocast(to: torch.dtype) -> None:
    tensors = qkv(requires_grad=True)
    with torch.autocast("cuda", dtype=to):
        out = attention(*tensors, causal=True)
    assert out.dtype == to
    assert torch.equal(out, attention(*(x.to(to) for x in tensors), causal=True))
    assert [x.dtype for x in torch.autograd.grad(out.sum(), tensors)] == [torch.float32] * 3
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert attention(*tensors).dtype == torch.float32


def test_results_into_memory_of_the_caller() -> None:
    q, k, v = qkv()
    expected = attention(q, k, v, return_lse=True)
    out, lse = torch.empty_like(q), torch.empty(2, 4, 70, device="cuda")
    got = attention(q, k, v, out=out, lse=lse)
    assert got[0] is out
    assert torch.equal(out, expected[0])
    assert torch.equal(lse, expected[1])


def test_dropout_follows_manual_seed() -> None:
    tensors = qkv(requires_grad=True)
    torch.manual_seed(1)
    first, second = (both_passes(attention, tensors, dropout_p=0.5) for _ in range(2))
    torch.manual_seed(1)
    assert_all_close(both_passes(attention, tensors, dropout_p=0.5), first)
    assert_all_close(both_passes(attention, tensors, dropout_p=0.5), second)
    assert not torch.equal(first[0], second[0])


def test_dropout_state() -> None:
    assert tilewise.torch.dropout_state(device="cuda").is_cuda
    generator = torch.Generator("cuda").manual_seed(5)
    state = tilewise.torch.dropout_state(generator)
    assert state.is_cuda
    assert torch.equal(tilewise.torch.dropout_state(torch.Generator("cuda").manual_seed(5)), state)
    q, k, v = qkv()
    seed, offset = state.tolist()
    out = attention(q, k, v, dropout_p=0.3, dropout_state=state, dropout_offset=2)
    assert torch.equal(out, attention(q, k, v, dropout_p=0.3, dropout_seed=seed, dropout_offset=offset + 2))
    with pytest.raises(ValueError, match="dropout_state is on cpu but q is on cuda:0"):
        attention(q, k, v, dropout_p=0.3, dropout_state=tilewise.torch.dropout_state())


def test_checkpoint_repeats_dropout() -> None:
    tensors = qkv(requires_grad=True)
    torch.manual_seed(1)
    expected = torch.autograd.grad(attention(*tensors, dropout_p=0.5).square().sum(), tensors)
    torch.manual_seed(1)
    call: Any = lambda *x: attention(*x, dropout_p=0.5)  # noqa: E731
    out = torch.utils.checkpoint.checkpoint(call, *tensors, use_reentrant=False)
    assert_all_close(torch.autograd.grad(out.square().sum(), tensors), expected)


def test_deterministic_algorithms() -> None:
    tensors = [torch.randn(1, 1200, 2, 64, device="cuda", dtype=torch.float16, requires_grad=True) for _ in range(3)]
    asked = both_passes(attention, tensors, deterministic=True)
    torch.use_deterministic_algorithms(True)
    try:
        for _ in range(5):
            for x, y in zip(both_passes(attention, tensors), asked, strict=True):
                assert torch.equal(x, y)
    finally:
        torch.use_deterministic_algorithms(False)


REFUSED = [
    (lambda q, k, v: (q, k.cpu(), v), {}, ValueError, "k is on cpu but q is on cuda:0"),
    (lambda q, k, v: (q.cpu(), k, v), {}, ValueError, "k is on cuda:0 but q is on cpu"),
    (lambda q, k, v: (q, k.to("meta"), v), {}, ValueError, "k is on meta but q is on cuda:0"),
    (lambda q, k, v: (q, k.half(), v), {}, ValueError, "k.dtype is fp16 but q.dtype is fp32"),
    (lambda q, k, v: (q.double(), k.double(), v.double()), {}, TypeError, "q has type float64"),
    (lambda q, k, v: (q, k, v), {"softcap": -1.0}, ValueError, "softcap is -1"),
    (lambda q, k, v: (q, k, v), {"mask": torch.ones(70, 90, dtype=torch.bool)}, ValueError, "mask is on cpu but q"),
    (lambda q, k, v: (q, k, v), {"mask": np.ones((70, 90), bool)}, TypeError, "mask is a ndarray"),
    (lambda q, k, v: (q, k, v), {"casual": True}, TypeError, "no keyword 'casual'"),
]


@pytest.mark.parametrize(("change", "options", "kind", "message"), REFUSED)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_refusals(
    requires_grad: bool, change: Any, options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    tensors = [x.detach().requires_grad_(requires_grad) for x in change(*qkv())]
    with pytest.raises(kind, match=message):
        attention(*tensors, **options)
    assert attention(*qkv()).isfinite().all()  # no error is left behind


def test_outputs_elsewhere_are_refused() -> None:
    q, k, v = qkv()
    with pytest.raises(ValueError, match="out is on cpu but q is on cuda:0"):
        attention(q, k, v, out=torch.empty(q.shape))


def test_second_derivatives_are_refused() -> None:
    tensors = qkv(requires_grad=True)
    first = torch.autograd.grad(attention(*tensors).sum(), tensors[0], create_graph=True)[0]
    with pytest.raises(RuntimeError, match="second derivatives"):
        first.sum().backward()


def test_torch_before_the_exchange_api(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewise import _torch_calls

    tensors = qkv(requires_grad=True)
    expected = both_passes(attention, tensors, causal=True)
    monkeypatch.setattr(_torch_calls, "LENDS", False)
    assert_all_close(both_passes(attention, tensors, causal=True), expected)


def test_out_of_memory() -> None:
    q = torch.empty(1, 1, 1, 64, device="cuda", dtype=torch.float16).expand(1 << 20, 1 << 12, 1, 64)
    with pytest.raises(torch.OutOfMemoryError):
        attention(q, q, q)
    assert attention(*qkv()).isfinite().all()


def test_examples_of_the_documentation() -> None:
    page = (pathlib.Path(__file__).parents[3] / "docs" / "python.md").read_text(encoding="utf-8")
    examples = [x for x in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL) if "cuda" in x]
    assert examples
    for example in examples:
        exec(example, {})


def test_empty() -> None:
    q, k, v = qkv()
    assert attention(q[:, :0], k, v).shape == (2, 0, 4, 64)
    out: Tensor = attention(q, k[:, :0], v[:, :0])
    assert torch.equal(out, torch.zeros_like(q))
