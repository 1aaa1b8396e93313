"""The library under test: TILEWISE_LIBRARY, or the one in build/."""

import os
import pathlib
import sys

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "bench"))

import c_interface as tw  # noqa: E402


@pytest.fixture(scope="session")
def library() -> tw.Library:
    torch.set_num_threads(1)  # the problems are small
    return tw.Library(os.environ.get("TILEWISE_LIBRARY", str(ROOT / "build" / "src" / "libtilewise.so")))
