"""Attention from its definition, in torch's own operations: values and gradients to compare with, in any type.

In fp64 it is the truth, in the type of a problem the yardstick of contract C8: standard attention with materialised
scores. Its gradients are autograd's, so they come from the probabilities, not from a saved `out`: torch_rounding.py
allows for that. Tensors are (B,S,H,D); a packed problem is one sequence with a block mask.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor


@dataclasses.dataclass
class Terms:
    """What shapes the scores, as tensors that broadcast to (B,H,Sq,Sk); `keep` has the factors of dropout."""

    live: Tensor | None = None
    softmax_scale: float | None = None
    softcap: float = 0
    alibi: Tensor | None = None
    keep: Tensor | None = None


def heads_outside(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(B,H,S,.), those of k and v repeated for each query head."""
    k, v = (x.repeat_interleave(q.shape[2] // k.shape[2], 2) for x in (k, v))
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


def scale_of(q: Tensor, terms: Terms) -> float:
    return float(q.shape[-1]) ** -0.5 if terms.softmax_scale is None else terms.softmax_scale


def attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, sink: Tensor | None, terms: Terms
) -> tuple[Tensor, Tensor]:
    """out (B,Sq,H,Dv) and lse (B,H,Sq)."""
    q, k, v = heads_outside(q, k, v)
    exact = torch.promote_types(q.dtype, torch.float32)
    scores = (q @ k.mT).to(exact) * scale_of(q, terms)
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


def gradients(results: tuple[Tensor, Tensor], grads: tuple[Tensor, Tensor], leaves: list[Tensor]) -> Any:
    """Of sum(out * dout) + sum(lse * dlse) over rows with keys."""
    out, lse = results
    dlse = grads[1].to(lse.dtype).masked_fill(lse == float("-inf"), 0)
    return torch.autograd.grad([out, lse], leaves, [grads[0].to(out.dtype), dlse])
