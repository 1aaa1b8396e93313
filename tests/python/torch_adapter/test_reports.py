"""Reports about attention under torch.compile; docs/known-faults.md has a row for each."""

from __future__ import annotations

from typing import Any

import pytest
import tilewise.torch
import torch
from tilewise import _torch_ops as ops
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend


def random(*shape: int, requires_grad: bool = False) -> Tensor:
    return torch.randn(shape, requires_grad=requires_grad)


def check_operator(name: str, *arguments: Any) -> None:
    torch.library.opcheck(getattr(torch.ops.tilewise, name).default, arguments)


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_rocm_flash_attention_163(packed: bool, requires_grad: bool) -> None:
    """ROCm/flash-attention#163."""
    leading = () if packed else (2,)
    q = random(*leading, 12, 4, 59, requires_grad=requires_grad)
    k, v = (random(*leading, 12, 2, 59, requires_grad=requires_grad) for _ in range(2))
    offsets = torch.tensor([0, 5, 12], dtype=torch.int32)
    options = {"causal": True} | ({"cu_seqlens_q": offsets, "cu_seqlens_k": offsets} if packed else {})
    values = ops._values(options)
    check_operator("forward", q, k, v, None, False, *values)
    with torch.no_grad():
        out, lse = torch.ops.tilewise.forward(q, k, v, None, False, *values)
    arrays = [x.detach() for x in (q, k, v, out, lse)]
    check_operator("backward", torch.randn_like(out), None, *arrays, [True, True, True, False, False], False, *values)
    gradients = torch.ops.tilewise.backward(out, None, *arrays, [True] * 3 + [False] * 2, False, *values)
    assert [x.shape for x in gradients[:3]] == [q.shape, k.shape, v.shape]


def test_vllm_omni_7220() -> None:
    """vllm-project/vllm-omni#7220."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    function = torch.compile(tilewise.torch.attention, backend=counter, fullgraph=True, dynamic=True)
    for batch in (1, 2):
        for length in (17, 33, 64, 65):
            q, k, v = (random(batch, length, 2, 16) for _ in range(3))
            assert torch.equal(function(q, k, v, causal=True), tilewise.torch.attention(q, k, v, causal=True))
    assert counter.frame_count <= 2


def test_pytorch_109607() -> None:
    """pytorch/pytorch#109607."""
    torch._dynamo.reset()
    function = torch.compile(tilewise.torch.attention, backend="aot_eager", fullgraph=True)
    q, k, v = (random(2, 9, 4, 16) for _ in range(3))
    mask = torch.rand(2, 4, 9, 9) < 0.7
    one = mask[:1, :1].contiguous()
    for live in (mask, one, one.expand(2, 4, 9, 9), mask.mT):
        for query in (q, q.transpose(1, 2).contiguous().transpose(1, 2)):
            expected = tilewise.torch.attention(q, k, v, mask=live.contiguous())
            assert torch.equal(function(query, k, v, mask=live), expected)
