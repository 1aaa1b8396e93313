"""torch.ops.tilewise: the forward and the backward as operators, for what records or rewrites operations.

Compilers, torch.export, fake and meta tensors and dispatch modes see these; plain eager calls do not need them.
Functional: results are new tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tilewise import _core
from tilewise import _torch_calls as calls
from tilewise._names import unknown_keyword

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


# As torch.compiler.assume_constant_result does, which first imports the compiler, for seconds: the text is a constant.
unknown_keyword._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _named(*kinds: str) -> tuple[str, ...]:
    return tuple(name for name, kind in _core.keywords.items() if kind in kinds)


# The options in the order of the schema; `window` is given by its sides. SymInt: a length may be a compiler's symbol.
TENSORS = _named("tensor")
FLAGS = _named("flag")
FLOATS = _named("float")
UNSIGNED = _named("unsigned")
INTEGERS = _named("int", "unsigned")
OPTIONS = (*TENSORS, *FLAGS, *FLOATS, *INTEGERS)
# Places of q, k, v, bias and sink among the arguments of the forward.
DIFFERENTIABLE = (0, 1, 2, 5 + OPTIONS.index("bias"), 5 + OPTIONS.index("sink"))

_SCHEMA = ", ".join(
    [
        *(f"Tensor? {name}" for name in TENSORS),
        *(f"bool {name}" for name in FLAGS),
        *(f"float? {name}" for name in FLOATS),
        *(f"SymInt? {name}" for name in INTEGERS),
    ]
)
# The compiler must not give other strides to what is passed: results take theirs from the arguments.
_TAGS = (
    torch.Tag.pt2_compliant_tag,
    getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order),
)

_library = torch.library.Library("tilewise", "DEF")
_library.define(
    f"forward(Tensor q, Tensor k, Tensor v, ScalarType? out_dtype, bool heads_first, {_SCHEMA})"
    " -> (Tensor out, Tensor lse)",
    tags=_TAGS,
)
_library.define(
    "backward(Tensor? dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, bool[] wanted,"
    f" bool heads_first, {_SCHEMA}) -> (Tensor dq, Tensor dk, Tensor dv, Tensor dbias, Tensor dsink)",
    tags=_TAGS,
)


def forward(
    q: Tensor, k: Tensor, v: Tensor, out_dtype: torch.dtype | None, heads_first: bool, options: Mapping[str, Any]
) -> tuple[Tensor, Tensor]:
    """(out, lse) by the operator."""
    result: tuple[Tensor, Tensor] = torch.ops.tilewise.forward(q, k, v, out_dtype, heads_first, *_values(options))
    return result


def backward(
    dout: Tensor | None,
    dlse: Tensor | None,
    arrays: Sequence[Tensor],
    wanted: Sequence[bool],
    heads_first: bool,
    options: Mapping[str, Any],
) -> tuple[Tensor | None, ...]:
    """(dq, dk, dv, dbias, dsink) by the operator, None for those not wanted. `arrays`: q, k, v, out, lse."""
    computed = torch.ops.tilewise.backward(dout, dlse, *arrays, list(wanted), heads_first, *_values(options))
    return tuple(x if is_wanted else None for x, is_wanted in zip(computed, wanted, strict=True))


def _is_bool(flag: Any) -> bool:
    """Python's or NumPy's, which is not imported here."""
    kind = type(flag)
    return kind is bool or (kind.__module__ == "numpy" and kind.__name__ in ("bool", "bool_"))


def _values(given: Mapping[str, Any]) -> list[Any]:
    """The options as the schema has them."""
    options = dict(given)
    window = options.pop("window", None)
    if window is not None:
        if not isinstance(window, tuple) or len(window) != 2:
            raise TypeError(f"window is {window!r}; it takes (left, right), None on a side without limit")
        sides = dict(zip(("window_left", "window_right"), window, strict=True))
        for side in sides:
            if options.get(side) is not None:
                raise ValueError(f"window is {window!r} and {side} is {options[side]!r}: give one of them")
        options.update(sides)
    for name in FLAGS:
        flag = options.get(name)
        if flag is not None and not _is_bool(flag):
            raise TypeError(f"{name} is {flag!r}; it takes True or False")
        options[name] = bool(flag)
    for name in UNSIGNED:
        number = options.get(name)
        if number is None:
            continue
        if not 0 <= number < 2**64:
            raise ValueError(f"{name} is {number!r}; it takes an integer of its range")
        if number >= 2**63:
            options[name] = number - 2**64  # the schema's integers are signed; the same bits
    values = [options.pop(name, None) for name in OPTIONS]
    for name in options:
        raise TypeError(unknown_keyword(name))
    return values


def _options(values: tuple[Any, ...]) -> dict[str, Any]:
    options = {name: value for name, value in zip(OPTIONS, values, strict=True) if value is not None}
    for name in UNSIGNED:
        if name in options:
            options[name] %= 2**64
    return options


def _forward(
    q: Tensor, k: Tensor, v: Tensor, out_dtype: torch.dtype | None, heads_first: bool, *values: Any
) -> tuple[Tensor, Tensor]:
    both: tuple[Tensor, Tensor] = calls.forward(q, k, v, None, True, out_dtype, heads_first, _options(values))
    return both


def _forward_fake(
    q: Tensor, k: Tensor, v: Tensor, out_dtype: torch.dtype | None, heads_first: bool, *values: Any
) -> tuple[Tensor, Tensor]:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not 3 <= x.dim() <= 4:
            raise ValueError(f"{name} has {x.dim()} axes; it takes 3 to 4")
    return calls.empty_along(q, v.shape[-1], out_dtype), calls.empty_lse(q, heads_first)


def _filled(gradients: tuple[Tensor | None, ...], q: Tensor) -> tuple[Tensor, ...]:
    """A schema has no optional results: an empty tensor for each that is not wanted."""
    return tuple(q.new_empty((0,)) if gradient is None else gradient for gradient in gradients)


def _backward(
    dout: Tensor | None,
    dlse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    wanted: list[bool],
    heads_first: bool,
    *values: Any,
) -> tuple[Tensor, ...]:
    return _filled(calls.backward(dout, dlse, (q, k, v, out, lse), wanted, heads_first, _options(values)), q)


def _backward_fake(
    dout: Tensor | None,
    dlse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    wanted: list[bool],
    heads_first: bool,
    *values: Any,
) -> tuple[Tensor, ...]:
    return _filled(calls.empty_gradients(q, k, v, wanted, _options(values)), q)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, _, heads_first, *values = inputs
    ctx.set_materialize_grads(False)
    ctx.heads_first = heads_first
    ctx.others = values[len(TENSORS) :]
    ctx.save_for_backward(q, k, v, *output, *values[: len(TENSORS)])


def _differentiate(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Any, ...]:
    gradients: list[Tensor | None] = [None] * (5 + len(OPTIONS))
    if dout is None and dlse is None:
        return tuple(gradients)
    arrays, tensors = ctx.saved_tensors[:5], ctx.saved_tensors[5:]
    options = _options((*tensors, *ctx.others))
    wanted = [ctx.needs_input_grad[place] for place in DIFFERENTIABLE]
    computed = backward(dout, dlse, arrays, wanted, ctx.heads_first, options)
    for place, gradient in zip(DIFFERENTIABLE, computed, strict=True):
        gradients[place] = gradient
    return tuple(gradients)


def _refuse_twice(ctx: Any, *gradients: Any) -> Any:
    raise RuntimeError("tilewise has no second derivatives: its backward cannot be differentiated")


for _device in ("CPU", "CUDA"):
    _library.impl("forward", _forward, _device)
    _library.impl("backward", _backward, _device)
torch.library.register_fake("tilewise::forward", _forward_fake, lib=_library)
torch.library.register_fake("tilewise::backward", _backward_fake, lib=_library)
torch.library.register_autograd("tilewise::forward", _differentiate, setup_context=_save, lib=_library)
torch.library.register_autograd("tilewise::backward", _refuse_twice, lib=_library)
