"""Threads, forks, signals and memory."""

from __future__ import annotations

import concurrent.futures
import gc
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading
import time
from typing import Any

import numpy as np
import pytest
import tilewise
from oracle import Float32, random


def long_inputs(rng: np.random.Generator) -> tuple[Float32, Float32, Float32]:
    return random(rng, 1, 512, 4, 64), random(rng, 1, 512, 4, 64), random(rng, 1, 512, 4, 64)


def test_threads_at_once(rng: np.random.Generator) -> None:
    inputs = [(random(rng, 1, n, 2, 16),) * 3 for n in (3, 60, 130, 250)]
    expected = [tilewise.attention(*x, causal=True) for x in inputs]

    def work(i: int) -> bool:
        return all(
            np.array_equal(tilewise.attention(*inputs[j % 4], causal=True), expected[j % 4]) for j in range(i, i + 20)
        )

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(16)))


def test_others_run_during_a_long_call(rng: np.random.Generator) -> None:
    """With an endless switch interval another thread gets its turn only when this one gives the lock away."""
    q, k, v = long_inputs(rng)
    ticks, stop = 0, threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not stop.is_set():
            ticks += 1
            time.sleep(1e-4)

    interval = sys.getswitchinterval()
    other = threading.Thread(target=tick)
    other.start()
    sys.setswitchinterval(1000)
    try:
        before = ticks
        for _ in range(10):
            tilewise.attention(q, k, v, threads=1)
        during = ticks - before
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        other.join()
    assert during > 0


def child(expected: Float32, q: Float32, queue: Any) -> None:
    queue.put(bool(np.array_equal(tilewise.attention(q, q, q, threads=2), expected)))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_fork_after_use(rng: np.random.Generator) -> None:
    q = long_inputs(rng)[0]
    expected = tilewise.attention(q, q, q, threads=2)
    context = multiprocessing.get_context("fork")
    queue: Any = context.Queue()
    children = [context.Process(target=child, args=(expected, q, queue)) for _ in range(2)]
    for process in children:
        process.start()
    assert [queue.get(timeout=120) for _ in children] == [True, True]
    for process in children:
        process.join()
    assert np.array_equal(tilewise.attention(q, q, q, threads=2), expected)


def test_interrupt_in_a_long_call(rng: np.random.Generator) -> None:
    q = random(rng, 1, 4096, 2, 64)
    out, expected = np.empty_like(q), tilewise.attention(q, q, q)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in a shell's background ignores it
    timer = threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    deadline = time.monotonic() + 60
    try:
        with pytest.raises(KeyboardInterrupt):
            while time.monotonic() < deadline:
                out[:] = 0
                tilewise.attention(q, q, q, out=out)
        timer.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert np.array_equal(tilewise.attention(q, q, q, out=out), expected)


def test_threads_that_outlive_the_interpreter() -> None:
    program = """
        import threading, time
        import numpy as np
        import tilewise
        q = np.zeros((1, 512, 4, 64), np.float32)
        def work():
            while True:
                tilewise.attention(q, q, q, threads=1)
        for _ in range(4):
            threading.Thread(target=work, daemon=True).start()
        time.sleep(0.2)
    """
    answer = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (answer.returncode, answer.stderr) == (0, "")


def resident_bytes() -> int:
    pages = pathlib.Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def test_nothing_leaks(rng: np.random.Generator) -> None:
    q = random(rng, 1, 64, 4, 32)
    mask = np.ones((64, 64), bool)

    def every_call() -> None:
        out, lse = tilewise.attention(q, q, q, mask=mask, causal=True, return_lse=True, window=(3, None))
        tilewise.attention_backward(out, q, q, q, out, lse, mask=mask, causal=True, window=(3, None))
        tilewise.merge([out, out], [lse, lse])
        tilewise.explain(q, q, q, backward=True)
        tilewise.traffic(q, q, q)
        for bad in ({"softcap": -1.0}, {"softcap": "x"}, {"mask": q}, {"out": q[0]}):
            with pytest.raises((ValueError, TypeError)):
                tilewise.attention(q, q, q, **bad)

    counted = (q, mask, q.dtype, mask.dtype, None, True)
    for _ in range(200):
        every_call()
    gc.collect()
    before = [sys.getrefcount(x) for x in counted]
    memory = resident_bytes()
    for _ in range(1000):
        every_call()
    gc.collect()
    after = [sys.getrefcount(x) for x in counted]
    assert all(abs(a - b) < 100 for a, b in zip(after, before, strict=True))
    assert resident_bytes() - memory < 4 << 20  # of 16 and 32 KiB results a thousand leaked ones are more


def test_imports_without_numpy() -> None:
    program = """
        import sys
        import tilewise
        assert "numpy" not in sys.modules and "torch" not in sys.modules
        x = tilewise.without_memory((1, 128, 4, 64), "bfloat16")
        print(tilewise.explain(x, x, x)["pass"])
    """
    answer = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True, timeout=60
    )
    assert answer.stdout == "forward\n"


def test_no_memory_for_objects() -> None:
    """Each allocation of Python's in a call fails once: an exception and no more."""
    pytest.importorskip("_testcapi")
    program = """
        import _testcapi
        import numpy as np
        import tilewise
        q = np.zeros((1, 300, 2, 8), np.float32)
        mask = np.ones((300, 300), bool)
        expected = tilewise.attention(q, q, q, mask=mask, window=(3, None), return_lse=True)
        failures = 0
        for at in range(100):
            result = None
            _testcapi.set_nomemory(at, at + 1)
            try:
                result = tilewise.attention(q, q, q, mask=mask, window=(3, None), return_lse=True)
            except MemoryError:
                failures += 1
            finally:
                _testcapi.remove_mem_hooks()
            assert result is None or all(np.array_equal(x, y) for x, y in zip(result, expected))
        assert failures > 3
        print("done")
    """
    answer = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (answer.returncode, answer.stdout) == (0, "done\n"), answer.stderr
