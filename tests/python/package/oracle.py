"""Attention in float64, naively, from its definition: independent of the library."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]


class Result(NamedTuple):
    out: Float64  # (B,Sq,H,Dv)
    lse: Float64  # (B,H,Sq)
    probabilities: Float64  # (B,H,Sq,Sk)


def random(rng: np.random.Generator, *shape: int) -> Float32:
    return rng.standard_normal(shape, dtype=np.float32)


def heads_repeated(x: Any, heads: int) -> Float64:
    """(B,Sk,Hk,D) in float64 with each head as often as query heads read it."""
    return np.repeat(x.astype(np.float64), heads // x.shape[2], axis=2)


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    live: Any = True,
    softmax_scale: float | None = None,
    softcap: float = 0,
    bias: Any = 0,
    sink: Any = None,
    drop: Any = None,
) -> Result:
    """live, bias: broadcast to (B,H,Sq,Sk). sink (H). drop (B,H,Sq,Sk): factors of the probabilities."""
    heads = q.shape[2]
    k, v = heads_repeated(k, heads), heads_repeated(v, heads)
    scale = q.shape[3] ** -0.5 if softmax_scale is None else softmax_scale
    scores = np.einsum("bihd,bjhd->bhij", q.astype(np.float64), k) * scale
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    scores = np.where(live, scores + bias, -np.inf)
    extra = np.full((*scores.shape[:3], 1), -np.inf)
    if sink is not None:
        extra[:] = np.asarray(sink, np.float64)[None, :, None, None]
    top = np.maximum(scores.max(-1, keepdims=True, initial=-np.inf), extra)
    safe_top = np.where(np.isinf(top), 0, top)
    weights = np.exp(scores - safe_top)
    total = weights.sum(-1, keepdims=True) + np.exp(extra - safe_top)
    with np.errstate(divide="ignore", invalid="ignore"):
        lse = (np.log(total) + safe_top)[..., 0]
        probabilities = np.where(total > 0, weights / total, 0)
    kept = probabilities if drop is None else probabilities * drop
    return Result(np.einsum("bhij,bjhd->bihd", kept, v), lse, probabilities)


def positions(rows: int, keys: int, top_left: bool = False) -> tuple[Any, Any]:
    """Of rows (Sq,1) and keys (1,Sk)."""
    return np.arange(rows)[:, None] + (0 if top_left else keys - rows), np.arange(keys)[None, :]


def causal(rows: int, keys: int, top_left: bool = False) -> Bool:
    p, j = positions(rows, keys, top_left)
    return np.asarray(j <= p)


def numeric_gradient(f: Any, x: Float32, samples: int, rng: np.random.Generator) -> list[tuple[tuple[int, ...], float]]:
    """(index, df/dx[index]) at some random places, by central differences in float64."""
    step = 1e-4
    answers = []
    for _ in range(samples):
        index = tuple(int(rng.integers(n)) for n in x.shape)
        up, down = x.astype(np.float64), x.astype(np.float64)
        up[index] += step
        down[index] -= step
        answers.append((index, float(f(up) - f(down)) / (2 * step)))
    return answers
