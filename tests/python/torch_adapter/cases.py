"""The options of attention, one problem each: what Tilewise is given, and the same as terms of the oracle; and tensors
that tests share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch_oracle import Terms, blocks, positions

B, SQ, SK, H, HK, D, DV = 2, 13, 17, 4, 2, 16, 8


@dataclasses.dataclass
class Case:
    options: dict[str, Any]
    terms: Terms
    bias: Tensor | None = None
    sink: Tensor | None = None
    packed: tuple[int, int] | None = None  # totals of q and k
    rank: int = 4


def _banded(low: int, high: int) -> Tensor:
    p, j = positions(SQ, SK)
    return (j >= p - low) & (j <= p + high)


def _chunk(size: int) -> Tensor:
    p, j = positions(SQ, SK)
    return j >= p // size * size


def _causal(top_left: bool = False) -> Tensor:
    p, j = positions(SQ, SK, top_left)
    return j <= p


def _alibi(slopes: Tensor) -> Case:
    p, j = positions(SQ, SK)
    return Case({"alibi_slopes": slopes}, Terms(alibi=-slopes.reshape(-1, H, 1, 1) * (p - j).abs()))


def _lengths() -> Case:
    seqused, left = torch.tensor([5, 17], dtype=torch.int32), torch.tensor([2, 0], dtype=torch.int32)
    keys = torch.arange(SK)
    live = (keys < seqused[:, None]) & (keys >= left[:, None])
    return Case({"seqused_k": seqused, "leftpad_k": left}, Terms(live=live[:, None, None, :]))


def _interval() -> Case:
    begin = torch.randint(0, SK, (B, 1, SQ), dtype=torch.int32)
    end = torch.minimum(begin + 6, torch.tensor(SK, dtype=torch.int32))
    end[0, 0, 3] = begin[0, 0, 3]  # a row without keys
    keys = torch.arange(SK)
    return Case({"key_begin": begin, "key_end": end}, Terms(live=(keys >= begin[..., None]) & (keys < end[..., None])))


def _positions() -> Case:
    of_rows = torch.randint(0, 40, (B, SQ), dtype=torch.int32)
    of_keys = torch.randint(0, 40, (1, SK), dtype=torch.int32).sort(-1).values
    live = of_keys[:, None, None, :] <= of_rows[:, None, :, None]
    return Case({"q_positions": of_rows, "k_positions": of_keys, "causal": True}, Terms(live=live))


def _mask() -> Case:
    live = torch.rand(B, 1, SQ, SK) < 0.6
    live[1, 0, 4] = False
    return Case({"mask": live}, Terms(live=live))


def _bias(*shape: int, dtype: torch.dtype = torch.float32) -> Case:
    bias = torch.randn(shape).to(dtype)
    return Case({}, Terms(), bias=bias)


def _packed(rank: int) -> Case:
    offsets_q, offsets_k = [0, 5, 5, 13], [0, 6, 9, 17]
    options = {
        "cu_seqlens_q": torch.tensor(offsets_q, dtype=torch.int32),
        "cu_seqlens_k": torch.tensor(offsets_k, dtype=torch.int32),
        "max_seqlen_q": 8,
        "max_seqlen_k": 8,
        "causal": True,
    }
    return Case(options, Terms(live=blocks(offsets_q, offsets_k)), packed=(SQ, SK), rank=rank)


def _together() -> Case:
    case = _bias(1, H, SQ, SK)
    return dataclasses.replace(
        case,
        options={"causal": True, "softcap": 2.0, "softmax_scale": 0.3, "window": (9, None)},
        terms=Terms(live=_banded(9, 0), softcap=2.0, softmax_scale=0.3),
        sink=torch.randn(H),
    )


CASES: dict[str, Callable[[], Case]] = {
    "plain": lambda: Case({}, Terms()),
    "causal": lambda: Case({"causal": True}, Terms(live=_causal())),
    "causal, top left": lambda: Case({"causal": True, "top_left": True}, Terms(live=_causal(True))),
    "window": lambda: Case({"window": (3, 2)}, Terms(live=_banded(3, 2))),
    "window by its sides": lambda: Case({"window_left": 4, "window_right": 0}, Terms(live=_banded(4, 0))),
    "chunk": lambda: Case({"attention_chunk": 5}, Terms(live=_chunk(5))),
    "scale": lambda: Case({"softmax_scale": -0.4}, Terms(softmax_scale=-0.4)),
    "softcap": lambda: Case({"softcap": 1.5}, Terms(softcap=1.5)),
    "mask": _mask,
    "interval": _interval,
    "positions": _positions,
    "lengths": _lengths,
    "bias": lambda: _bias(B, H, SQ, SK),
    "bias that repeats": lambda: _bias(1, H, 1, SK),
    "bias of two axes": lambda: _bias(SQ, SK),
    "bias in bfloat16": lambda: _bias(B, 1, SQ, SK, dtype=torch.bfloat16),
    "alibi": lambda: _alibi(torch.rand(H)),
    "alibi by sequence": lambda: _alibi(torch.rand(B, H)),
    "sink": lambda: Case({}, Terms(), sink=torch.randn(H)),
    "packed": lambda: _packed(3),
    "packed, four axes": lambda: _packed(4),
    "together": _together,
    "deterministic": lambda: Case({"deterministic": True, "threads": 2}, Terms()),
    "splits": lambda: Case({"num_splits": 3, "batch_invariant": False}, Terms()),
}


def qkv(requires_grad: bool = False, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(0)
    shapes = ((2, 9, 4, 16), (2, 11, 2, 16), (2, 11, 2, 16))
    return [torch.randn(shape, dtype=dtype, requires_grad=requires_grad) for shape in shapes]


def gradients(out: Tensor, dout: Tensor, tensors: list[Tensor]) -> Any:
    return torch.autograd.grad(out, tensors, dout, retain_graph=True)


def assert_all_equal(left: Any, right: Any) -> None:
    for x, y in zip(left, right, strict=True):
        assert torch.equal(x, y)


def on_meta(x: Tensor) -> Tensor:
    return x.to("meta")
