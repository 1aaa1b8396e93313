"""What a call from Python costs beyond the same call of the C interface: a tiny problem, one thread, pinned to one CPU.

The C time is that of a loop in C++ over tw_attention_forward on the same memory, compiled here against the library that
is given. Both take turns, and medians of CPU time count.

    python bench/python_overhead.py --library build/src/libtilewise.so [--device cuda]

With PyTorch installed it has rows of tilewise.torch too. On a GPU, which needs PyTorch, the C call is timed in both its
forms, planned and one-shot; what is beyond counts from the planned one, and PyTorch's own attention stands beside.
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
from c_interface import BF16, CPU, F32
from tilewise import _core

ROOT = pathlib.Path(__file__).parents[1]
CUDA = 2
ROUNDS, CALLS = 41, 2000
CALLS_ON_GPU = 200  # fewer than a stream takes before a launch waits
DIM = 8
DIM_ON_GPU = 64
BACKWARD = "backward, by the clock on the wall"

LOOP = r"""
#include <time.h>
#include "tilewise/tilewise.h"
static double now() { timespec t; clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); return t.tv_sec + 1e-9 * t.tv_nsec; }
// Planned once if there is a workspace; otherwise each call is one-shot.
extern "C" double seconds_a_call(int device_type, int dtype, void* stream, void* workspace, uint64_t workspace_bytes,
                                 void* q, void* k, void* v, void* out, int64_t dim, int calls) {
  tw_exec exec;
  TW_INIT(exec);
  exec.stream = stream;
  exec.workspace = workspace;
  exec.workspace_bytes = workspace_bytes;
  tw_plan plan;
  const auto problem = [&] {
    tw_attention a;
    TW_INIT(a);
    a.device_type = device_type;
    a.threads = 1;
    a.q = tw_tensor_of(q, dtype, 1, 1, 1, dim);
    a.k = tw_tensor_of(k, dtype, 1, 1, 1, dim);
    a.v = tw_tensor_of(v, dtype, 1, 1, 1, dim);
    a.out = tw_tensor_of(out, dtype, 1, 1, 1, dim);
    return a;
  };
  const tw_attention first = problem();
  if (workspace && tw_attention_plan(&first, nullptr, &plan) != TW_OK) return -1;
  const double start = now();
  for (int i = 0; i < calls; ++i) {
    const tw_attention a = problem();
    const tw_status status =
        workspace ? tw_attention_run(&plan, &a, nullptr, &exec) : tw_attention_forward(&a, &exec);
    if (status != TW_OK) return -1;
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
    pointer = ctypes.c_void_p
    loop.argtypes = [ctypes.c_int, ctypes.c_int, pointer, pointer, ctypes.c_uint64, *[pointer] * 4, ctypes.c_int64,
                     ctypes.c_int]  # fmt: skip
    return loop


Clock = Callable[[], float]


def seconds_a_call(call: Callable[[], Any], calls: int = CALLS, clock: Clock = time.thread_time) -> float:
    start = clock()
    for _ in range(calls):
        call()
    return (clock() - start) / calls


Ways = dict[str, Callable[[], Any]]


def ways_of_torch() -> Ways:
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


def nothing() -> None:
    pass


def report(first: str, in_c: list[float], extra: dict[str, list[float]]) -> None:
    print(f"{first}: {1e6 * statistics.median(in_c):.2f} us; beyond it:")
    for name, times in extra.items():
        print(f"  {name:34} {1e6 * statistics.median(times):.2f} us")


def on_cpu(loop: Any) -> None:
    q, k, v, out = (np.ones((1, 1, 1, DIM), np.float32) for _ in range(4))
    ways: Ways = {
        "tilewise.attention, out given": lambda: tilewise.attention(q, k, v, out=out, threads=1),
        "the same, with four more options": lambda: tilewise.attention(
            q, k, v, out=out, threads=1, causal=True, softmax_scale=0.5, window=(3, None), softcap=2.0
        ),
        "tilewise.attention, new out": lambda: tilewise.attention(q, k, v, threads=1),
        "_core.forward": lambda: _core.forward(q, k, v, out, None, None, False, {"threads": 1}),
    }
    ways |= ways_of_torch()
    pointers = [x.ctypes.data for x in (q, k, v, out)]
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    in_c: list[float] = []
    extra: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        c_time = loop(CPU, F32, None, None, 0, *pointers, DIM, CALLS)
        in_c.append(c_time)
        loop_time = seconds_a_call(nothing)
        for name, call in ways.items():
            extra[name].append(seconds_a_call(call) - loop_time - c_time)
    report("the C call", in_c, extra)


def on_gpu(loop: Any) -> None:
    import tilewise.torch
    import torch
    from tilewise import _torch_ops as operators

    q, k, v, out = (torch.ones(1, 1, 1, DIM_ON_GPU, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    learned, workspace = q.clone().requires_grad_(), torch.empty(1 << 20, device="cuda", dtype=torch.int8)
    attention, sdpa = tilewise.torch.attention, torch.nn.functional.scaled_dot_product_attention
    recorded = attention(learned, k, v, deterministic=True)
    ways: Ways = {
        "tilewise.torch.attention": lambda: attention(q, k, v),
        "the same, causal, with lse": lambda: attention(q, k, v, causal=True, return_lse=True),
        "the same, out given": lambda: attention(q, k, v, out=out),
        "the same, recorded by autograd": lambda: attention(learned, k, v),
        "torch.ops.tilewise.forward": lambda: operators.forward(q, k, v, None, False, {}),
        "tilewise.attention": lambda: tilewise.attention(q, k, v),
        "PyTorch's attention": lambda: sdpa(q, k, v),
        "the same, recorded": lambda: sdpa(learned, k, v),
        BACKWARD: lambda: torch.autograd.grad(recorded, learned, out, retain_graph=True),
    }
    pointers = [x.data_ptr() for x in (q, k, v, out)]
    stream = torch.cuda.current_stream().cuda_stream
    memory = (workspace.data_ptr(), workspace.numel())
    planned: list[float] = []
    one_shot: list[float] = []
    extra: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        planned.append(loop(CUDA, BF16, stream, *memory, *pointers, DIM_ON_GPU, CALLS_ON_GPU))
        torch.cuda.synchronize()
        one_shot.append(loop(CUDA, BF16, stream, None, 0, *pointers, DIM_ON_GPU, CALLS_ON_GPU))
        for name, call in ways.items():
            clock = time.perf_counter if name == BACKWARD else time.thread_time  # autograd has a thread of its own
            torch.cuda.synchronize()
            extra[name].append(seconds_a_call(call, CALLS_ON_GPU, clock) - planned[-1])
    if min(planned + one_shot) < 0:
        raise SystemExit("the library refuses the call")
    print(f"one-shot: {1e6 * statistics.median(one_shot):.2f} us")
    report("planned", planned, extra)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=pathlib.Path, required=True, help="libtilewise.so")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        loop = compiled_loop(arguments.library, folder)
        (on_gpu if arguments.device == "cuda" else on_cpu)(loop)


if __name__ == "__main__":
    main()
