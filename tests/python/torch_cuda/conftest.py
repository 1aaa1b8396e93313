"""tilewise.torch on a GPU. Helpers are those of torch_adapter/."""

from __future__ import annotations

import pathlib
import sys

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "torch_adapter"))


@pytest.fixture(autouse=True)
def gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch.cuda.is_available() is false: no GPU")
    torch.manual_seed(0)
