"""A user's typed program: mypy --strict reads it, and a test runs it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import tilewise

Array = npt.NDArray[np.float32]


def layer(q: Array, k: Array, v: Array, **options: Any) -> Array:
    out: Array = tilewise.attention(q, k, v, **options)
    return out


def step(q: Array, k: Array, v: Array, dout: Array) -> tilewise.Gradients:
    options: tilewise.Options = {"causal": True, "window": (128, None)}
    out, lse = tilewise.attention(q, k, v, return_lse=True, **options)
    return tilewise.attention_backward(dout, q, k, v, out, lse, want=("q", "v"), **options)


def main() -> None:
    x = np.ones((1, 4, 2, 8), np.float32)
    assert layer(x, x, x, softmax_scale=0.5).shape == x.shape
    gradients = step(x, x, x, x)
    assert gradients.dk is None
    assert tilewise.traffic(x, x, x)["v2"] is not None
    print(gradients.dv.shape)


if __name__ == "__main__":
    main()
