"""Attention from its definition, in torch's own operations: values and gradients to compare with, in any type.

In fp64 it is the truth, in the type of a problem the yardstick of contract C8: standard attention with materialised
scores. Tensors are (B,S,H,D); a packed problem is one sequence with a block mask.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

# Of the type of q. 16-bit: a rounding of out in rowsum(dout * out), of which a small problem may show much.
UNIT = {torch.float32: 1e-6, torch.float16: 1e-4, torch.bfloat16: 4e-4}


@dataclasses.dataclass
class Terms:
    """What shapes the scores, as tensors that broadcast to (B,H,Sq,Sk); `keep` has the factors of dropout."""

    live: Tensor | None = None
    softmax_scale: float | None = None
    softcap: float = 0
    alibi: Tensor | None = None
    keep: Tensor | None = None


def attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, sink: Tensor | None, terms: Terms
) -> tuple[Tensor, Tensor]:
    """out (B,Sq,H,Dv) and lse (B,H,Sq)."""
    group = q.shape[2] // k.shape[2]
    q, k, v = (x.transpose(1, 2) for x in (q, k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)))
    exact = torch.promote_types(q.dtype, torch.float32)
    scale = q.shape[-1] ** -0.5 if terms.softmax_scale is None else terms.softmax_scale
    scores = (q @ k.mT).to(exact) * scale
    if terms.softcap:
        scores = terms.softcap * torch.tanh(scores / terms.softcap)
    for added in (bias, terms.alibi):
        if added is not None:
            scores = scores + added.to(exact)
    if terms.live is not None:
        scores = scores.masked_fill(~terms.live, float("-inf"))
    logits = scores
    if sink is not None:
        logits = torch.cat([scores, sink.to(exact)[:, None, None].expand(*scores.shape[:3], 1)], -1)
    dead = (logits == float("-inf")).all(-1, keepdim=True)
    lse = logits.masked_fill(dead, 0).logsumexp(-1, keepdim=True)
    probabilities = (scores.masked_fill(dead, 0) - lse).exp().masked_fill(dead, 0)
    if terms.keep is not None:
        probabilities = probabilities * terms.keep.to(exact)
    out = probabilities.to(v.dtype) @ v
    return out.transpose(1, 2), lse.masked_fill(dead, float("-inf"))[..., 0]


def positions(rows: int, keys: int, top_left: bool = False) -> tuple[Tensor, Tensor]:
    """Of rows (Sq,1) and keys (1,Sk)."""
    return torch.arange(rows)[:, None] + (0 if top_left else keys - rows), torch.arange(keys)[None, :]


def blocks(offsets_q: list[int], offsets_k: list[int]) -> Tensor:
    """(1,1,total_q,total_k): causal within each sequence, bottom right, nothing across."""
    live = torch.zeros(offsets_q[-1], offsets_k[-1], dtype=torch.bool)
    for at in range(len(offsets_q) - 1):
        rows, keys = (slice(offsets[at], offsets[at + 1]) for offsets in (offsets_q, offsets_k))
        p, j = positions(rows.stop - rows.start, keys.stop - keys.start)
        live[rows, keys] = j <= p
    return live[None, None]


def assert_close(name: str, ours: Tensor, exact: Tensor, standard: Tensor, problem_dtype: torch.dtype) -> None:
    """Contract C8, with a few roundings more for results that standard attention happens to hit."""
    finite = exact.isfinite()
    assert torch.equal(ours[~finite].double(), exact[~finite]), name
    error, yardstick = ((x.double() - exact)[finite].abs().max().item() for x in (ours, standard))
    largest = exact[finite].abs().max().item()
    allowed = 2 * yardstick + 4 * UNIT[problem_dtype] * max(largest, 0.1)
    assert error <= allowed, f"{name}: error {error:.3g}, allowed {allowed:.3g}"


def gradients(results: tuple[Tensor, Tensor], grads: tuple[Tensor, Tensor], leaves: list[Tensor]) -> Any:
    """Of sum(out * dout) + sum(lse * dlse) over rows with keys."""
    out, lse = results
    dlse = grads[1].to(lse.dtype).masked_fill(lse == float("-inf"), 0)
    return torch.autograd.grad([out, lse], leaves, [grads[0].to(out.dtype), dlse])
