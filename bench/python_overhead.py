"""What a call from Python costs beyond the same call of the C interface: a tiny problem, one thread, pinned to one CPU.

The C time is that of a loop in C++ over tw_attention_forward on the same memory, compiled here against the library that
is given. Both take turns, and medians of CPU time count.

    python bench/python_overhead.py --library build/src/libtilewise.so

With PyTorch installed it has rows of tilewise.torch too.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import os
import pathlib
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tilewise
from tilewise import _core

ROOT = pathlib.Path(__file__).parents[1]
ROUNDS, CALLS = 41, 2000

LOOP = r"""
#include <time.h>
#include "tilewise/tilewise.h"
static double now() { timespec t; clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); return t.tv_sec + 1e-9 * t.tv_nsec; }
extern "C" double seconds_a_call(float* q, float* k, float* v, float* out, int64_t heads, int64_t dim, int calls) {
  const double start = now();
  for (int i = 0; i < calls; ++i) {
    tw_attention a;
    TW_INIT(a);
    a.device_type = TW_CPU;
    a.threads = 1;
    a.q = tw_tensor_of(q, TW_F32, 1, 1, heads, dim);
    a.k = tw_tensor_of(k, TW_F32, 1, 1, heads, dim);
    a.v = tw_tensor_of(v, TW_F32, 1, 1, heads, dim);
    a.out = tw_tensor_of(out, TW_F32, 1, 1, heads, dim);
    if (tw_attention_forward(&a, nullptr) != TW_OK) return -1;
  }
  return (now() - start) / calls;
}
"""


def compiled_loop(library: pathlib.Path, folder: str) -> Any:
    source, result = pathlib.Path(folder, "loop.cpp"), pathlib.Path(folder, "loop.so")
    source.write_text(LOOP, encoding="utf-8")
    folder_of_library = str(library.resolve().parent)
    subprocess.run(
        ["c++", "-std=c++20", "-O2", "-shared", "-fPIC", f"-I{ROOT / 'include'}", str(source), "-o", str(result),
         f"-L{folder_of_library}", "-ltilewise", f"-Wl,-rpath,{folder_of_library}"],
        check=True,
    )  # fmt: skip
    loop = ctypes.CDLL(str(result)).seconds_a_call
    loop.restype = ctypes.c_double
    return loop


def seconds_a_call(call: Callable[[], Any]) -> float:
    start = time.thread_time()
    for _ in range(CALLS):
        call()
    return (time.thread_time() - start) / CALLS


def ways_of_torch() -> dict[str, Callable[[], Any]]:
    """The same problem as tensors; nothing where PyTorch is not installed."""
    if importlib.util.find_spec("torch") is None:
        return {}
    import tilewise.torch
    import torch
    from tilewise import _torch_ops as operators

    torch.set_num_threads(1)
    q, k, v = (torch.ones(1, 1, 1, 8) for _ in range(3))
    learned = torch.ones(1, 1, 1, 8, requires_grad=True)
    attention = tilewise.torch.attention
    return {
        "tilewise.torch.attention": lambda: attention(q, k, v, threads=1),
        "the same, causal, with lse": lambda: attention(q, k, v, threads=1, causal=True, return_lse=True),
        "the same, recorded by autograd": lambda: attention(learned, k, v, threads=1),
        "torch.ops.tilewise.forward": lambda: operators.forward(q, k, v, None, False, {"threads": 1}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=pathlib.Path, required=True, help="libtilewise.so")
    library = parser.parse_args().library
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    q, k, v, out = (np.ones((1, 1, 1, 8), np.float32) for _ in range(4))
    ways: dict[str, Callable[[], Any]] = {
        "tilewise.attention, out given": lambda: tilewise.attention(q, k, v, out=out, threads=1),
        "the same, with four more options": lambda: tilewise.attention(
            q, k, v, out=out, threads=1, causal=True, softmax_scale=0.5, window=(3, None), softcap=2.0
        ),
        "tilewise.attention, new out": lambda: tilewise.attention(q, k, v, threads=1),
        "_core.forward": lambda: _core.forward(q, k, v, out, None, None, False, {"threads": 1}),
    }
    ways |= ways_of_torch()
    empty: Callable[[], Any] = lambda: None  # noqa: E731
    with tempfile.TemporaryDirectory() as folder:
        loop = compiled_loop(library, folder)
        pointers = [ctypes.c_void_p(x.ctypes.data) for x in (q, k, v, out)]
        in_c: list[float] = []
        extra: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            c_time = loop(*pointers, ctypes.c_int64(1), ctypes.c_int64(8), CALLS)
            in_c.append(c_time)
            loop_time = seconds_a_call(empty)
            for name, call in ways.items():
                extra[name].append(seconds_a_call(call) - loop_time - c_time)
    print(f"the C call: {1e6 * statistics.median(in_c):.2f} us; beyond it:")
    for name, times in extra.items():
        print(f"  {name:34} {1e6 * statistics.median(times):.2f} us")


if __name__ == "__main__":
    main()
