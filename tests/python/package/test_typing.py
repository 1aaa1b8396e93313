"""What the checkers say of all Python here, and of a user's typed program."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest
import typed_example

ROOT = pathlib.Path(__file__).parents[3]
EXAMPLE = "tests/python/package/typed_example.py"
MYPY = ("mypy", "--strict", "--no-incremental")


def run_module(*command: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip(command[0])
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
    )


@pytest.mark.parametrize(
    "command",
    [
        (*MYPY, "python/tilewise", "bench", "scripts", EXAMPLE),
        ("ruff", "check", "--no-cache", "."),
        ("ruff", "format", "--check", "--no-cache", "."),
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_checkers_are_silent(command: tuple[str, ...]) -> None:
    answer = run_module(*command)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_wrong_calls_are_found() -> None:
    program = "import tilewise\ntilewise.attention(1, 2, 3, casual=True)\ntilewise.attention(1, 2, 3, softcap='x')\n"
    answer = run_module(*MYPY, "-c", program)
    assert '<string>:2: error: Unexpected keyword argument "casual"' in answer.stdout
    assert "<string>:3: error" in answer.stdout


def test_typed_example(capsys: pytest.CaptureFixture[str]) -> None:
    typed_example.main()
    assert capsys.readouterr().out == "(1, 4, 2, 8)\n"
