"""Causal attention of one sequence: by Tilewise, and as textbooks write it, with all scores in memory."""

import time
from collections.abc import Callable

import numpy as np
import tilewise

# q (rows, heads, d), k and v (keys, kv_heads, d) to out (rows, heads, d); the last row sees every key.
Attention = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def tiled(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    return tilewise.attention(q[None], k[None], v[None], causal=True)[0]


def naive(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    (rows, heads, d), keys, group = q.shape, len(k), q.shape[1] // k.shape[1]
    later = np.triu(np.ones((rows, keys), bool), keys - rows + 1)
    out = np.empty_like(q)
    for head in range(heads):
        scores = q[:, head] / q.dtype.type(np.sqrt(d)) @ k[:, head // group].T
        np.putmask(scores, later, -np.inf)
        scores -= scores.max(axis=1, keepdims=True)
        np.exp(scores, out=scores)
        out[:, head] = scores @ v[:, head // group] / scores.sum(axis=1, keepdims=True)
    return out


class Timed:
    """An attention that adds up the seconds spent in it."""

    def __init__(self, attention: Attention) -> None:
        self.attention = attention
        self.seconds = 0.0

    def __call__(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        started = time.perf_counter()
        out = self.attention(q, k, v)
        self.seconds += time.perf_counter() - started
        return out
