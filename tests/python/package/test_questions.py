"""explain, info, traffic, the version and the command."""

from __future__ import annotations

import importlib.metadata
import json
import pathlib
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import tilewise

X = np.zeros((1, 64, 4, 32), np.float32)
SHAPE = tilewise.without_memory((1, 64, 4, 32))
PACKAGE = pathlib.Path(tilewise.__file__).parent
COMMAND = PACKAGE / "bin" / "tilewise"
CUDA_LIBRARY = PACKAGE / "libtilewise_cuda.so.0"


@pytest.mark.parametrize("x", [X, SHAPE], ids=["array", "shape"])
def test_explain(x: Any) -> None:
    forward = tilewise.explain(x, x, x, causal=True, threads=1)
    assert forward["pass"] == "forward"
    assert forward["kernel"].startswith("cpu.tiled.")
    assert forward["workers"] == 1
    assert forward["flops"] == 4 * 32 * 4 * (64 * 65 // 2)
    assert tilewise.explain(x, x, x, backward=True)["pass"] == "backward"


def test_explain_counts_the_lengths_that_it_is_given() -> None:
    used = np.array([16], np.int32)
    assert tilewise.explain(X, X, X, seqused_k=used)["flops"] == tilewise.explain(X, X, X)["flops"] / 4


def test_explain_of_heads_first() -> None:
    shape = tilewise.without_memory((1, 4, 64, 32), np.float16)
    assert tilewise.explain(shape, shape, shape, layout="bhsd")["flops"] == tilewise.explain(X, X, X)["flops"]


def test_info() -> None:
    info = tilewise.info()
    assert info["version"] == tilewise.__version__ == importlib.metadata.version("tilewise")
    assert info["cpu"]["cores"] >= 1
    assert any(kernel["name"] == "cpu.reference.forward" for kernel in info["kernels"])


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tilewise", *arguments], capture_output=True, text=True, check=False, timeout=120
    )


needs_command = pytest.mark.skipif(not COMMAND.exists(), reason="the package was built without the command")


@needs_command
@pytest.mark.skipif(not CUDA_LIBRARY.exists(), reason="the package was built without nvcc")
def test_module_and_command_find_the_cuda_library() -> None:
    """What may be missing is a driver or a GPU."""
    [cuda] = [backend for backend in tilewise.info()["backends"] if backend["name"] == "cuda"]
    assert "back end" not in str(cuda["reason"])
    assert re.search("^cuda (?!.*back end)", command("info").stdout, re.MULTILINE)


@needs_command
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_traffic_is_that_of_the_command(direction: str) -> None:
    size = ("--seqlen", "64", "--heads", "4", "--head-dim", "32", "--fast-memory", "8192", "--causal")
    rows = json.loads(command("traffic", *size, "--pass", direction, "--json").stdout)
    answer = tilewise.traffic(SHAPE, SHAPE, SHAPE, causal=True, fast_memory=8192, backward=direction == "backward")
    assert [row["algorithm"] for row in rows] == list(answer)
    for row in rows:
        numbers = answer[row["algorithm"]]
        assert numbers is not None
        assert numbers == {name: row[name] for name in ("flops", "bytes_read", "bytes_written")}


@needs_command
def test_demo_runs_with_the_input_of_the_package() -> None:
    demo = command("demo", "--tokens", "256")
    assert demo.returncode == 0, demo.stderr
    assert "Exact" in demo.stdout


@needs_command
def test_exit_code_is_that_of_the_command() -> None:
    assert command("--version").stdout.split()[-1] == tilewise.__version__
    assert command("demmo").returncode != 0


def test_without_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    main = __import__("tilewise.__main__", fromlist=["main"])
    monkeypatch.setattr(main, "COMMAND", pathlib.Path("/nowhere"))
    assert main.main() == 1
    assert "libcli11-dev" in capsys.readouterr().err
