"""CUDA graphs: calls are captured, the first one of a process too, and replayed on new numbers."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import tilewise.torch
import torch
from on_gpu import assert_all_close, attention, both_passes, qkv
from torch import Tensor


def captured(function: Any, *, warm: bool = True) -> tuple[torch.cuda.CUDAGraph, Any]:
    if warm:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            function()
        torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = function()
    return graph, results


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (20, 0)}])
def test_forward(options: dict[str, Any], dtype: torch.dtype) -> None:
    tensors = qkv(dtype=dtype)
    graph, (out, lse) = captured(lambda: attention(*tensors, return_lse=True, **options))
    for _ in range(3):
        for x in tensors:
            x.copy_(torch.randn_like(x))
        graph.replay()
        expected = attention(*tensors, return_lse=True, **options)
        assert torch.equal(out, expected[0])
        assert torch.equal(lse, expected[1])


@pytest.mark.parametrize("deterministic", [False, True])
def test_both_passes(deterministic: bool) -> None:
    tensors = qkv(requires_grad=True)
    options = {"causal": True, "deterministic": deterministic}
    graph, results = captured(lambda: both_passes(attention, tensors, **options))
    for _ in range(3):
        with torch.no_grad():
            for x in tensors:
                x.copy_(torch.randn_like(x))
        graph.replay()
        assert_all_close(results, both_passes(attention, tensors, **options))


def test_lengths_may_change_between_replays() -> None:
    """Numbers in device memory are read by each replay; the host gives bounds."""
    q, k, v = (x[0] for x in qkv())
    offsets_q = torch.tensor([0, 30, 70], dtype=torch.int32, device="cuda")
    offsets_k = torch.tensor([0, 50, 90], dtype=torch.int32, device="cuda")

    def call() -> Tensor:
        out: Tensor = tilewise.torch.attention_varlen(q, k, v, offsets_q, offsets_k, causal=True)
        return out

    graph, out = captured(call)
    for middle_q, middle_k in ((10, 70), (65, 66), (0, 0)):
        offsets_q[1], offsets_k[1] = middle_q, middle_k
        graph.replay()
        assert torch.equal(out, call())


def test_dropout_is_new_in_each_replay() -> None:
    tensors = qkv()
    graph, out = captured(lambda: attention(*tensors, dropout_p=0.5))

    def replays() -> list[Tensor]:
        torch.manual_seed(7)
        results = []
        for _ in range(3):
            graph.replay()
            results.append(out.clone())
        return results

    first, second = replays(), replays()
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[1], first[2])
    for x, y in zip(first, second, strict=True):
        assert torch.equal(x, y)


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = torch.nn.Linear(64, 192)
        self.sink = torch.nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x).unflatten(-1, (3, 4, 16)).unbind(2)
        out: Tensor = tilewise.torch.attention(q, k, v, causal=True, sink=self.sink)
        return out.flatten(2)


def test_graphed_callables() -> None:
    layer = Layer().cuda()
    x = torch.randn(2, 33, 64, device="cuda", requires_grad=True)
    expected = layer(x)
    gradients = torch.autograd.grad(expected.square().sum(), [x, *layer.parameters()])
    graphed = torch.cuda.make_graphed_callables(Layer().cuda(), (x.detach().clone().requires_grad_(),))
    graphed.load_state_dict(layer.state_dict())
    got = graphed(x)
    assert_all_close([got], [expected])
    assert_all_close(torch.autograd.grad(got.square().sum(), [x, *graphed.parameters()]), gradients, 1e-4)


COLD = """
import torch, tilewise.torch
tensors = [torch.randn(1, 40, 2, 64, device="cuda", dtype=torch.{dtype}, requires_grad=True) for _ in range(3)]
graph = torch.cuda.CUDAGraph()
torch.cuda.synchronize()
with torch.cuda.graph(graph):
    out = tilewise.torch.attention(*tensors, causal=True)
    gradients = torch.autograd.grad(out, tensors, out.detach())
graph.replay()
torch.cuda.synchronize()
again = tilewise.torch.attention(*tensors, causal=True)
assert torch.equal(out, again)
for x, y in zip(gradients, torch.autograd.grad(again, tensors, again.detach())):
    torch.testing.assert_close(x, y, rtol=1e-2, atol=1e-2)
"""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_first_call_of_a_process(dtype: str) -> None:
    subprocess.run([sys.executable, "-c", COLD.format(dtype=dtype)], check=True, timeout=120)
