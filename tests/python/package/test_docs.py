"""Every Python example of docs/python.md and of the README runs; those of a page run in one program, in order.

Examples of PyTorch are run by tests/python/torch_adapter.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[3]


@pytest.mark.parametrize("page", ["docs/python.md", "README.md"])
def test_examples_run(page: str) -> None:
    examples = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    examples = [example for example in examples if "import torch" not in example]
    assert examples
    answer = subprocess.run(
        [sys.executable, "-W", "error", "-c", "".join(examples)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert answer.returncode == 0, answer.stderr
