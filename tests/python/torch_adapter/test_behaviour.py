"""tilewise.torch.attention as a citizen of PyTorch: memory, modes, autocast."""

from __future__ import annotations

import copy
import pathlib
import re
from typing import Any

import numpy as np
import pytest
import tilewise.torch
import torch
from tilewise import _core, _torch_calls
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from cases import assert_all_equal, gradients, on_meta, qkv

ROOT = pathlib.Path(__file__).parents[3]


def test_strides_are_read_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """What reaches the library is the caller's memory: heads outside, slices, repeats."""
    seen: list[tuple[int, ...]] = []

    def spy(*arguments: Any) -> Any:
        result = _core.eager(*arguments)
        if result is not None:
            seen.append(tuple(x.data_ptr() for x in arguments[:3]))
        return result

    monkeypatch.setattr(tilewise.torch, "eager", spy)
    together = torch.randn(2, 9, 3, 4, 16)
    expanded = torch.randn(1, 9, 1, 16).expand(2, 9, 4, 16)
    sliced = torch.randn(2, 18, 8, 40)[:, ::2, 1::2, 3:19]
    for q, k, v in (together.unbind(2), (together[:, :, 0], expanded, sliced), (sliced, sliced, expanded)):
        expected = tilewise.torch.attention(q.contiguous(), k.contiguous(), v.contiguous())
        assert torch.equal(tilewise.torch.attention(q, k, v), expected)
        assert seen[-1] == (q.data_ptr(), k.data_ptr(), v.data_ptr())


def test_deterministic_algorithms(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's switch holds where the option is left out; it is the backward that it concerns."""
    seen: list[Any] = []
    real = _core.backward
    monkeypatch.setattr(_core, "backward", lambda *x: (seen.append(x[10].get("deterministic")), real(*x))[1])
    torch.use_deterministic_algorithms(True)
    try:
        for options in ({}, {"deterministic": False}):
            tensors = qkv(requires_grad=True)
            torch.autograd.grad(tilewise.torch.attention(*tensors, **options).sum(), tensors)
    finally:
        torch.use_deterministic_algorithms(False)
    assert seen == [True, False]


def test_last_axis_of_another_stride() -> None:
    wide = [torch.randn(2, 9, 16, 4, requires_grad=True) for _ in range(3)]
    views = [x.transpose(2, 3) for x in wide]
    dense = [x.contiguous() for x in views]
    out, expected = tilewise.torch.attention(*views), tilewise.torch.attention(*dense)
    assert torch.equal(out, expected)
    dout = torch.randn(2, 9, 16, 4).transpose(2, 3)
    assert_all_equal(gradients(out, dout, wide), gradients(expected, dout.contiguous(), wide))
    one = torch.randn(2, 9, 1, 4).transpose(2, 3)  # contiguous to torch, though its last stride is 4
    assert torch.equal(tilewise.torch.attention(one, one, one), tilewise.torch.attention(*[one.clone()] * 3))


def test_strides_of_dout() -> None:
    tensors = qkv(requires_grad=True)
    out = tilewise.torch.attention(*tensors)
    numbers = torch.randn_like(out)
    expected = gradients(out, numbers, tensors)
    wide = torch.zeros(2, 9, 4, 40)
    wide[..., 5:21] = numbers
    for dout in (wide[..., 5:21], numbers.mT.contiguous().mT, numbers.transpose(0, 1).contiguous().transpose(0, 1)):
        assert_all_equal(gradients(out, dout, tensors), expected)
    assert_all_equal(
        gradients(out, torch.ones(()).expand_as(out), tensors), gradients(out, torch.ones_like(out), tensors)
    )


def test_only_lse_used() -> None:
    q, k, v = qkv(requires_grad=True)
    _, lse = tilewise.torch.attention(q, k, v, return_lse=True)
    dq, dk, dv = torch.autograd.grad(lse.sum(), (q, k, v))
    assert dq.abs().max() > 0
    assert dk.abs().max() > 0
    assert torch.equal(dv, torch.zeros_like(v))


@pytest.mark.parametrize("wanted", [0, 1, 2])
def test_one_gradient_alone(wanted: int) -> None:
    tensors = qkv()
    tensors[wanted].requires_grad_()
    all_tensors = qkv(requires_grad=True)
    alone = tilewise.torch.attention(*tensors)
    expected = torch.autograd.grad(tilewise.torch.attention(*all_tensors).sum(), all_tensors)[wanted]
    assert torch.equal(torch.autograd.grad(alone.sum(), tensors[wanted])[0], expected)


def test_without_gradients() -> None:
    q, k, v = qkv(requires_grad=True)
    assert tilewise.torch.attention(q, k, v).grad_fn is not None
    with torch.no_grad():
        assert tilewise.torch.attention(q, k, v).grad_fn is None
    with torch.inference_mode():
        assert tilewise.torch.attention(q, k, v).is_inference()


def test_results_into_memory_of_the_caller() -> None:
    q, k, v = qkv()
    expected = tilewise.torch.attention(q, k, v, return_lse=True)
    out, lse = torch.empty(2, 9, 4, 16), torch.empty(2, 4, 9)
    result = tilewise.torch.attention(q, k, v, out=out, lse=lse)
    assert result[0] is out
    assert result[1] is lse
    assert_all_equal(result, expected)
    assert tilewise.torch.attention(q, k, v, out=out) is out
    with pytest.raises(ValueError, match="out and lse"):
        tilewise.torch.attention(q.requires_grad_(), k, v, out=out)


def test_writes_are_seen_by_autograd() -> None:
    q, k, v = qkv()
    out, lse = torch.empty(2, 9, 4, 16), torch.empty(2, 4, 9)
    weights = torch.ones(2, 9, 4, 1, requires_grad=True)
    for result in (out, lse):
        result.zero_()
        loss = (weights.sum() * result).sum()
        tilewise.torch.attention(q, k, v, out=out, lse=lse)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    with pytest.raises(ValueError, match="out and lse"):
        tilewise.torch.attention(q, k, v, out=out.requires_grad_())
    with torch.no_grad():
        assert tilewise.torch.attention(q, k, v, out=out) is out
    with torch.inference_mode():
        tilewise.torch.attention(q, k, v, out=torch.empty(2, 9, 4, 16))
    with pytest.raises(TypeError, match=r"out is a ndarray; tilewise\.torch takes tensors"):
        tilewise.torch.attention(q, k, v, out=out.detach().numpy())


def test_forward_mode_is_refused() -> None:
    q, k, v = qkv()
    bias = torch.zeros(9, 11)
    with torch.autograd.forward_ad.dual_level():
        assert tilewise.torch.attention(q, k, v, bias=bias, causal=True) is not None
        dual = [torch.autograd.forward_ad.make_dual(x, torch.ones_like(x)) for x in (q, bias)]
        with pytest.raises(NotImplementedError, match=r"^q has a tangent"):
            tilewise.torch.attention(dual[0], k, v)
        with pytest.raises(NotImplementedError, match=r"^bias has a tangent"):
            tilewise.torch.attention(q, k, v, bias=dual[1])


class Derived(Tensor):
    pass


def test_forward_mode_is_refused_where_something_looks_on() -> None:
    q, k, v = qkv()
    with torch.autograd.forward_ad.dual_level():
        derived = torch.autograd.forward_ad.make_dual(q.as_subclass(Derived), q.as_subclass(Derived))
        with pytest.raises(NotImplementedError, match=r"^q has a tangent"):
            tilewise.torch.attention(derived, k, v)
    if hasattr(torch.func, "linearize"):
        with pytest.raises(NotImplementedError, match=r"^q has a tangent"):
            torch.func.linearize(lambda x: tilewise.torch.attention(x, k, v), q)


class Seeing(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_backward_where_something_looks_on() -> None:
    tensors = qkv(requires_grad=True)
    out = tilewise.torch.attention(*tensors)
    expected = gradients(out, torch.ones_like(out), tensors)
    with Seeing() as seeing:
        assert_all_equal(gradients(out, torch.ones_like(out), tensors), expected)
    assert "tilewise.backward.default" in seeing.names
    with pytest.raises(NotImplementedError, match="is_grads_batched"):
        torch.autograd.grad(out, tensors, torch.stack([torch.ones_like(out)] * 2), is_grads_batched=True)


def test_options_are_checked_alike_where_something_looks_on() -> None:
    bad: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"causal": 1}, TypeError),
        ({"window": [1, 1]}, TypeError),
        ({"window": (1,)}, TypeError),
        ({"window": (5, 0), "window_left": 3}, ValueError),
        ({"window_right": 0, "window": (None, None)}, ValueError),
        ({"window_size": (5, 0)}, TypeError),
        ({"casual": True}, TypeError),
        ({"dropout_seed": -1}, ValueError),
        ({"dropout_seed": 2**64}, ValueError),
    ]
    for options, kind in bad:
        with pytest.raises(kind) as eager:
            tilewise.torch.attention(*qkv(), **options)
        with Seeing(), pytest.raises(kind) as seen:
            tilewise.torch.attention(*qkv(), **options)
        assert str(seen.value) == str(eager.value)


def test_flags_of_numpy_where_something_looks_on() -> None:
    tensors = qkv()
    flag: Any = np.True_
    expected = tilewise.torch.attention(*tensors, causal=True)
    assert torch.equal(tilewise.torch.attention(*tensors, causal=flag), expected)
    with Seeing():
        assert torch.equal(tilewise.torch.attention(*tensors, causal=flag), expected)


def test_packed_sequences_by_their_own_function() -> None:
    tensors = [x[0].detach().requires_grad_() for x in qkv()]
    offsets_q, offsets_k = (torch.tensor(offsets, dtype=torch.int32) for offsets in ((0, 4, 9), (0, 6, 11)))
    out, lse = tilewise.torch.attention_varlen(*tensors, offsets_q, offsets_k, return_lse=True, causal=True)
    expected, expected_lse = tilewise.torch.attention(
        *tensors, cu_seqlens_q=offsets_q, cu_seqlens_k=offsets_k, return_lse=True, causal=True
    )
    assert_all_equal((out, lse), (expected, expected_lse))
    dout = torch.randn_like(out)
    assert_all_equal(gradients(out, dout, tensors), gradients(expected, dout, tensors))


def test_tensors_without_strides() -> None:
    q, k, v = qkv()
    for other in (q.to_sparse(), q.to_mkldnn(), torch.nested.nested_tensor(list(q)), q[0, 0].to_sparse_csr()):
        with pytest.raises(TypeError, match=r"^q is a tensor without plain memory"):
            tilewise.torch.attention(other, k, v)


def test_dropout_on_other_devices_than_the_default() -> None:
    q, k, v = qkv()
    on_meta_device = [on_meta(x) for x in (q, k, v)]
    assert tilewise.torch.attention(*on_meta_device, dropout_p=0.5).shape == q.shape
    with torch.device("meta"):
        assert tilewise.torch.attention(q, k, v, dropout_p=0.5).is_cpu


def test_packed_queries_with_heads_first() -> None:
    """Only 4-D tensors are turned."""
    _, k, v = qkv()
    q, offsets = torch.randn(18, 4, 16), torch.tensor([0, 9, 18], dtype=torch.int32)
    expected = tilewise.torch.attention(q, k, v, cu_seqlens_q=offsets, return_lse=True)
    k, v = k.transpose(1, 2), v.transpose(1, 2)
    got = tilewise.torch.attention(q, k, v, cu_seqlens_q=offsets, return_lse=True, layout="bhsd")
    assert_all_equal(got, expected)


def test_out_dtype() -> None:
    tensors = [x.requires_grad_() for x in qkv(dtype=torch.bfloat16)]
    for dtype in (torch.float32, "float32"):
        out = tilewise.torch.attention(*tensors, out_dtype=dtype)
        assert out.dtype == torch.float32
        assert [x.dtype for x in torch.autograd.grad(out.sum(), tensors)] == [torch.bfloat16] * 3


@pytest.mark.parametrize("given", [torch.float32, torch.float16, torch.bfloat16])
def test_autocast(given: torch.dtype) -> None:
    """To its type, as torch's own attention; other arguments stay."""
    q, k, v = qkv()
    sink = torch.randn(4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = tilewise.torch.attention(q.to(given), k, v.bfloat16(), sink=sink)
        assert torch.nn.functional.scaled_dot_product_attention(q, q, q).dtype == torch.bfloat16
    expected = tilewise.torch.attention(q.to(given).bfloat16(), k.bfloat16(), v.bfloat16(), sink=sink)
    assert torch.equal(out, expected)


def test_autocast_gives_gradients_in_the_type_of_the_argument() -> None:
    tensors = qkv(requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = tilewise.torch.attention(*tensors)
    assert [x.dtype for x in torch.autograd.grad(out.sum(), tensors)] == [torch.float32] * 3


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = torch.nn.Linear(32, 96)
        self.sink = torch.nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x).unflatten(-1, (3, 4, 8)).unbind(2)
        out: Tensor = tilewise.torch.attention(q, k, v, causal=True, sink=self.sink)
        return out.flatten(2)


def test_module_can_be_copied_and_trained() -> None:
    layer = Layer()
    twin = copy.deepcopy(layer)
    x = torch.randn(2, 7, 32)
    for module in (layer, twin):
        module(x).square().sum().backward()
    assert_all_equal([p.grad for p in layer.parameters()], [p.grad for p in twin.parameters()])
    assert all(p.grad.abs().max() > 0 for p in layer.parameters())


def test_checkpoint_repeats_dropout() -> None:
    q, k, v = qkv(requires_grad=True)

    def call(*tensors: Tensor) -> Tensor:
        out: Tensor = tilewise.torch.attention(*tensors, dropout_p=0.5)
        return out

    torch.manual_seed(1)
    expected = torch.autograd.grad(call(q, k, v).square().sum(), (q, k, v))
    torch.manual_seed(1)
    out = torch.utils.checkpoint.checkpoint(call, q, k, v, use_reentrant=False)
    assert_all_equal(torch.autograd.grad(out.square().sum(), (q, k, v)), expected)


def test_argument_changed_before_the_backward() -> None:
    q, k, v = qkv(requires_grad=True)
    mask = torch.ones(11, dtype=torch.bool)
    out = tilewise.torch.attention(q, k, v, mask=mask)
    mask[3] = False
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_negative_bit() -> None:
    """A view whose memory holds the negated numbers."""
    q, k, v = qkv()
    lazy = torch._neg_view(q)
    assert lazy.is_neg()
    assert torch.equal(tilewise.torch.attention(lazy, k, v), tilewise.torch.attention(-q, k, v))
    out = tilewise.torch.attention(q.requires_grad_(), k, v)
    assert_all_equal(gradients(out, lazy.detach(), [q]), gradients(out, -q.detach(), [q]))


def test_torch_before_the_exchange_api(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = qkv(requires_grad=True)
    mask = torch.rand(9, 11) < 0.7

    def both() -> list[Tensor]:
        out = tilewise.torch.attention(*tensors, mask=mask)
        return [out, *torch.autograd.grad(out.sum(), tensors)]

    expected = both()
    monkeypatch.setattr(_torch_calls, "LENDS", False)
    assert_all_equal(both(), expected)


def test_negative_bit_of_the_gradient_of_lse() -> None:
    q, k, v = qkv(requires_grad=True)
    _, lse = tilewise.torch.attention(q, k, v, return_lse=True)
    dlse = torch.randn_like(lse).detach()
    assert_all_equal(gradients(lse, torch._neg_view(dlse), [q, k]), gradients(lse, -dlse, [q, k]))


def test_examples_of_the_documentation() -> None:
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    examples = [x for x in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL) if "import torch" in x]
    examples = [x for x in examples if "cuda" not in x]  # which tests/python/torch_cuda runs
    assert examples
    for example in examples:
        exec(example, {})
