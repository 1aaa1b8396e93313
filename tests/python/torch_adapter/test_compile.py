"""tilewise.torch.attention under torch.compile, torch.export and opcheck, and on tensors without memory."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import Any

import pytest
import tilewise.torch
import torch
import torch._inductor.config
from tilewise import _torch_ops as ops
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode

from cases import CASES


def qkv(batch: int = 2, rows: int = 9, keys: int = 11, requires_grad: bool = True) -> list[Tensor]:
    shapes = ((batch, rows, 4, 16), (batch, keys, 2, 16), (batch, keys, 2, 8))
    return [torch.randn(shape, requires_grad=requires_grad) for shape in shapes]


def results(function: Any, tensors: list[Tensor], **options: Any) -> list[Tensor]:
    """out, lse and the gradients of the tensors."""
    out, lse = function(*tensors, return_lse=True, **options)
    return [out, lse, *torch.autograd.grad(out.square().sum() + lse.sum(), tensors)]


def assert_same(got: list[Tensor], expected: list[Tensor]) -> None:
    for x, y in zip(got, expected, strict=True):
        assert x.stride() == y.stride()
        torch.testing.assert_close(x, y, rtol=0, atol=1e-6)


def compiled(backend: Any = "aot_eager", dynamic: bool | None = None) -> Any:
    torch._dynamo.reset()
    return torch.compile(tilewise.torch.attention, backend=backend, fullgraph=True, dynamic=dynamic)


@pytest.mark.parametrize("name", ["plain", "together", "mask", "bias that repeats", "sink", "window", "lengths"])
def test_one_graph(name: str) -> None:
    torch.manual_seed(0)
    case, tensors = CASES[name](), qkv(rows=13, keys=17)
    learned = {"bias": case.bias, "sink": case.sink}
    options = case.options | {name: x for name, x in learned.items() if x is not None}
    assert_same(results(compiled(), tensors, **options), results(tilewise.torch.attention, tensors, **options))


def test_packed_in_one_graph() -> None:
    case = CASES["packed"]()
    tensors = [torch.randn(13, 4, 16), torch.randn(17, 2, 16), torch.randn(17, 2, 8)]
    tensors = [x.requires_grad_() for x in tensors]
    assert_same(
        results(compiled(dynamic=True), tensors, **case.options),
        results(tilewise.torch.attention, tensors, **case.options),
    )


def test_layouts_keep_their_strides() -> None:
    """(B,H,S,D) views of (B,S,H,D) memory, a slice of packed q, k, v, and heads outside."""
    together = torch.randn(2, 9, 3, 4, 16)
    views = [
        [x.transpose(1, 2) for x in together.unbind(2)],
        list(torch.randn(3, 2, 4, 9, 16).unbind(0)),
        [torch.randn(4, 2, 9, 16).transpose(0, 1) for _ in range(3)],
    ]
    function = compiled()
    for view in views:
        leaves = [x.detach().requires_grad_() for x in view]
        out, _ = function(*leaves, layout="bhsd", return_lse=True)
        assert (out.stride(1) < out.stride(2)) == (leaves[0].stride(1) < leaves[0].stride(2))
        assert_same(results(function, leaves, layout="bhsd"), results(tilewise.torch.attention, leaves, layout="bhsd"))


def test_dynamic_shapes_compile_once() -> None:
    counter = CompileCounterWithBackend("aot_eager")
    function = compiled(counter, dynamic=True)
    for rows, keys in ((5, 7), (9, 12), (33, 40)):
        tensors = qkv(3, rows, keys)
        assert_same(results(function, tensors, causal=True), results(tilewise.torch.attention, tensors, causal=True))
    assert counter.frame_count == 1


@pytest.mark.skipif(shutil.which("g++") is None, reason="the compiler's C++ needs g++")
@torch._inductor.config.patch({"compile_threads": 1, "cpp.vec_isa_ok": False})
def test_inductor() -> None:
    """A whole block, so that the compiler has operations of its own around the call."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    weight = torch.randn(32, 96) / 6

    def block(x: Tensor) -> Tensor:
        q, k, v = (x @ weight).unflatten(-1, (3, 4, 8)).unbind(2)
        out: Tensor = tilewise.torch.attention(q, k, v, causal=True).flatten(2)
        return torch.nn.functional.gelu(out) + x

    x = torch.randn(2, 12, 32, requires_grad=True)
    got, expected = torch.compile(block, fullgraph=True)(x), block(x)
    torch.testing.assert_close(got, expected)
    gradients = [torch.autograd.grad(y.square().sum(), x)[0] for y in (got, expected)]
    torch.testing.assert_close(*gradients)


def test_dropout_in_one_graph() -> None:
    tensors, function = qkv(), compiled()
    torch.manual_seed(3)
    first = results(function, tensors, dropout_p=0.4)
    torch.manual_seed(3)
    assert_same(first, results(tilewise.torch.attention, tensors, dropout_p=0.4))


def operator_arguments(name: str, heads_first: bool) -> tuple[Any, ...]:
    case = CASES[name]()
    totals = case.packed
    shapes = (
        ((2, 13, 4, 16), (2, 17, 2, 16), (2, 17, 2, 8)) if totals is None else ((13, 4, 16), (17, 2, 16), (17, 2, 8))
    )
    tensors = [torch.randn(shape) for shape in shapes]
    if heads_first:
        tensors = [x.transpose(1, 2) for x in tensors]
    tensors = [x.requires_grad_() for x in tensors]
    learned = {"bias": case.bias, "sink": case.sink}
    options = case.options | {name: x.requires_grad_() for name, x in learned.items() if x is not None}
    return (*tensors, None, heads_first, *ops._values(options))


@pytest.mark.parametrize(
    ("name", "heads_first"),
    [("plain", False), ("plain", True), ("together", False), ("together", True), ("lengths", False), ("packed", False)],
)
def test_opcheck(name: str, heads_first: bool) -> None:
    torch.library.opcheck(torch.ops.tilewise.forward.default, operator_arguments(name, heads_first))


@pytest.mark.parametrize("heads_first", [False, True])
def test_opcheck_backward(heads_first: bool) -> None:
    arguments = [x.detach() if isinstance(x, Tensor) else x for x in operator_arguments("together", heads_first)]
    out, lse = torch.ops.tilewise.forward(*arguments)
    q, k, v, _, _, *values = arguments
    for wanted, dlse in (([True] * 5, torch.randn_like(lse)), ([True, False, True, False, False], None)):
        torch.library.opcheck(
            torch.ops.tilewise.backward.default,
            (torch.randn_like(out), dlse, q, k, v, out, lse, wanted, heads_first, *values),
        )


class Layer(torch.nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = tilewise.torch.attention(q, k, v, causal=True)
        return out


def test_export_with_a_dynamic_length() -> None:
    length = torch.export.Dim("length", min=2, max=4096)
    tensors = [torch.randn(2, 9, 2, 16) for _ in range(3)]
    shapes = {name: {1: length} for name in "qkv"}
    program = torch.export.export(Layer(), tuple(tensors), dynamic_shapes=shapes)
    assert "tilewise.forward" in str(program.graph)
    longer = [torch.randn(2, 31, 2, 16) for _ in range(3)]
    torch.testing.assert_close(program.module()(*longer), Layer()(*longer))


def test_meta_and_fake_tensors() -> None:
    real = tilewise.torch.attention(*qkv(), return_lse=True)
    meta = tilewise.torch.attention(*(x.to("meta") for x in qkv()), return_lse=True)
    with FakeTensorMode() as mode:
        fake = tilewise.torch.attention(*(mode.from_tensor(x) for x in qkv()), return_lse=True)
    for x, y, z in zip(real, meta, fake, strict=True):
        assert x.shape == y.shape == z.shape
        assert x.stride() == y.stride() == z.stride()
        assert x.dtype == y.dtype == z.dtype


def test_fake_tensors_of_a_gpu() -> None:
    """Without one: shapes, strides and the device of the results."""
    shapes = [x.shape for x in qkv()]
    with FakeTensorMode():
        given = [torch.empty(shape, device="cuda") for shape in shapes]
        for options in ({}, {"dropout_p": 0.4}):
            out, lse = tilewise.torch.attention(*given, return_lse=True, **options)
            assert out.device == lse.device == torch.device("cuda:0")
        state = tilewise.torch.dropout_state(device="cuda")
        gradients = torch.ops.tilewise.backward(
            out, None, *given, out, lse, [True] * 3 + [False] * 2, False, *ops._values({"dropout_state": state})
        )
    real = tilewise.torch.attention(*qkv(requires_grad=False), return_lse=True)
    for x, y in zip((out, lse), real, strict=True):
        assert x.shape == y.shape
        assert x.stride() == y.stride()
    assert [x.shape for x in gradients[:3]] == [x.shape for x in given]
    assert all(x.is_cuda for x in gradients)
    with FakeTensorMode(), pytest.raises(ValueError, match="k is on cpu but q is on cuda:0"):
        tilewise.torch.attention(given[0], torch.empty(shapes[1]), given[2])


def test_no_compiler_is_imported_before_it_is_used() -> None:
    program = "import sys, tilewise.torch; assert 'torch._dynamo' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_errors_reach_through_a_graph() -> None:
    q, k, v = qkv(requires_grad=False)
    with pytest.raises(ValueError, match="dropout_p"):
        compiled()(q, k, v, dropout_p=1.5, dropout_seed=1)
    for options, message in (
        ({"casual": True}, "no keyword 'casual'; did you mean causal"),
        ({"is_causal": True}, "no keyword 'is_causal'; here it is causal"),
        ({"window": (5, 0), "window_left": 3}, "window is .* and window_left is 3"),
    ):
        with pytest.raises(Exception, match=message):
            compiled()(q, k, v, **options)
