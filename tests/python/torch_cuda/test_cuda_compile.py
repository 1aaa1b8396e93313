"""torch.compile and opcheck with tensors on a GPU."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import tilewise.torch
import torch
from on_gpu import assert_all_close, attention, both_passes, qkv
from tilewise import _torch_ops as ops
from torch import Tensor

from cases import CASES


def compiled(**options: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(tilewise.torch.attention, fullgraph=True, **options)


@pytest.mark.parametrize("options", [{}, {"causal": True, "softcap": 2.0, "window": (9, None)}])
def test_one_graph(options: dict[str, Any]) -> None:
    tensors = qkv(requires_grad=True)
    expected = both_passes(attention, tensors, **options)
    assert_all_close(both_passes(compiled(backend="aot_eager"), tensors, **options), expected)


def test_dropout_in_one_graph() -> None:
    tensors, function = qkv(requires_grad=True), compiled(backend="aot_eager")
    torch.manual_seed(3)
    first = both_passes(function, tensors, dropout_p=0.4)
    torch.manual_seed(3)
    assert_all_close(first, both_passes(attention, tensors, dropout_p=0.4))


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="inductor needs triton")
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_inductor(mode: str) -> None:
    """A block with operations of the compiler's own around the call; reduce-overhead captures it in a CUDA graph."""
    torch._dynamo.reset()
    weight = torch.randn(32, 96, device="cuda") / 6

    def block(x: Tensor) -> Tensor:
        q, k, v = (x @ weight).unflatten(-1, (3, 4, 8)).unbind(2)
        out: Tensor = tilewise.torch.attention(q, k, v, causal=True).flatten(2)
        return torch.nn.functional.gelu(out) + x

    function = torch.compile(block, fullgraph=True, mode=mode)
    for _ in range(4):
        x = torch.randn(2, 12, 32, device="cuda", requires_grad=True)
        expected = block(x)
        wanted = torch.autograd.grad(expected.square().sum(), x)
        torch.compiler.cudagraph_mark_step_begin()
        got = function(x)
        assert_all_close([got.clone()], [expected], 1e-3)
        assert_all_close(torch.autograd.grad(got.square().sum(), x), wanted, 1e-3)


@pytest.mark.parametrize("name", ["plain", "together", "packed"])
def test_opcheck(name: str) -> None:
    case = CASES[name]()
    shapes: Any = ((13, 4, 16), (17, 2, 16), (17, 2, 8))
    if case.packed is None:
        shapes = [(2, *shape) for shape in shapes]
    tensors = [torch.randn(shape, device="cuda", requires_grad=True) for shape in shapes]
    learned = {"bias": case.bias, "sink": case.sink}
    options = case.options | {name: x.requires_grad_() for name, x in learned.items() if x is not None}
    options = {name: x.detach().cuda().requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x
               for name, x in options.items()}  # fmt: skip
    # Twice the same bits, as the check wants it.
    values = ops._values(options | {"deterministic": True})
    torch.library.opcheck(torch.ops.tilewise.forward.default, (*tensors, None, False, *values))
    arrays = [x.detach() for x in tensors]
    values = [x.detach() if isinstance(x, Tensor) else x for x in values]
    out, lse = torch.ops.tilewise.forward(*arrays, None, False, *values)
    wanted = [True, True, True, case.bias is not None, case.sink is not None]
    torch.library.opcheck(
        torch.ops.tilewise.backward.default,
        (torch.randn_like(out), torch.randn_like(lse), *arrays, out, lse, wanted, False, *values),
    )
