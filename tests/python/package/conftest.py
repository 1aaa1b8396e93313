"""What the tests of the Python package share."""

from __future__ import annotations

import numpy as np
import pytest
from oracle import Float32, random


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20260101)


@pytest.fixture
def qkv(rng: np.random.Generator) -> tuple[Float32, Float32, Float32]:
    """q (2,19,4,16), k (2,23,2,16), v (2,23,2,8)."""
    return random(rng, 2, 19, 4, 16), random(rng, 2, 23, 2, 16), random(rng, 2, 23, 2, 8)
