"""On whose threads tilewise.torch runs: torch's own, as many as torch.set_num_threads says."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import subprocess
import sys
import textwrap
from typing import Any

import pytest
import tilewise
import tilewise.torch
import torch
from tilewise import _core, _torch_calls
from torch import Tensor

START = """
    import os, torch, tilewise.torch
    def started(do):
        before = len(os.listdir("/proc/self/task"))
        do()
        return len(os.listdir("/proc/self/task")) - before
    torch.set_num_threads(1)
    x = torch.randn(1, 2048, 4, 16, requires_grad=True)
    x.sum().backward()  # has threads of its own for other devices than the CPU
    def attend(**options):
        tilewise.torch.attention(x, x, x, **options).sum().backward()
"""


def output_of(program: str) -> str:
    text = textwrap.dedent(START) + textwrap.dedent(program)
    return subprocess.run([sys.executable, "-c", text], check=True, capture_output=True, text=True, timeout=300).stdout


def inputs() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(1, 1024, 4, 32)


@pytest.fixture
def four_threads() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def test_torch_has_an_openmp() -> None:
    assert _torch_calls.Host.openmp != 0


def test_starts_no_threads_beside_those_of_torch() -> None:
    """NumPy's call, which has no other, starts its own."""
    counts = output_of("""
        torch.set_num_threads(4)
        torch.ones(1000, 1000) @ torch.ones(1000, 1000)
        y = x.detach().numpy()
        print(started(attend), started(lambda: tilewise.attention(y, y, y, threads=4)))
    """)
    assert counts == "0 3\n"


def test_as_many_as_torch_is_set_to() -> None:
    counts = output_of("""
        print(started(attend))
        torch.set_num_threads(3)
        print(started(attend))
    """)
    assert counts == "0\n2\n"


def test_as_many_where_nothing_is_recorded() -> None:
    counts = output_of("""
        y = x.detach()
        print(started(lambda: tilewise.torch.attention(y, y, y)))
        torch.set_num_threads(3)
        print(started(lambda: tilewise.torch.attention(y, y, y)))
    """)
    assert counts == "0\n2\n"


@pytest.mark.parametrize(("options", "count"), [({}, 4), ({"threads": 2}, 2), ({"threads": 0}, 4)])
def test_count(options: dict[str, int], count: int, four_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the library is asked for: the option before torch's number."""
    asked = []
    real = _core.forward

    def forward(*arguments: Any) -> Any:
        asked.append(arguments[7].get("threads") or arguments[9])
        return real(*arguments)

    monkeypatch.setattr(_core, "forward", forward)
    monkeypatch.setattr(tilewise.torch, "eager", lambda *_: None)  # which asks in the same way
    tilewise.torch.attention(*[inputs()] * 3, **options)
    assert asked == [count]


def test_same_bits_as_on_own_threads(four_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def results() -> tuple[Tensor, ...]:
        q, k, v = (inputs().requires_grad_() for _ in range(3))
        out = tilewise.torch.attention(q, k, v, causal=True, deterministic=True)
        return (out.detach(), *torch.autograd.grad(out.square().sum(), (q, k, v)))

    of_torch = results()
    monkeypatch.setattr(_torch_calls.Host, "openmp", 0)
    for left, right in zip(of_torch, results(), strict=True):
        assert torch.equal(left, right)


def test_callers_at_once(four_threads: None) -> None:
    """Each has a team of its own."""
    x = inputs()
    expected = tilewise.torch.attention(x, x, x)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for out in pool.map(lambda _: tilewise.torch.attention(x, x, x), range(40)):
            assert torch.equal(out, expected)


def _in_child(x: Any, queue: Any) -> None:
    queue.put(tilewise.torch.attention(*[torch.from_numpy(x)] * 3).numpy())


def test_after_a_fork(four_threads: None) -> None:
    """OpenMP would wait for threads that the child has not."""
    x = inputs()
    expected = tilewise.torch.attention(x, x, x)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(x.numpy(), queue))
    child.start()
    assert torch.equal(torch.from_numpy(queue.get(timeout=120)), expected)
    child.join(60)
    assert child.exitcode == 0
