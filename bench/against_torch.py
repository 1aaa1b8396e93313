"""Tilewise beside PyTorch's scaled_dot_product_attention on the CPU: the same tensors, the two run in turn.

    python bench/against_torch.py --library build/src/libtilewise.so --threads 1

One thread: CPU time of the thread; more: wall time. Ratios are time(torch) / time(tilewise) of medians; above 1 ours is
faster. PyTorch is called as its users call it: (B,H,S,D) views, `is_causal=True`, backward by torch.autograd.grad.
Tilewise runs planned through the C interface, on threads of its own beside those of PyTorch; with
--through package it is tilewise.torch.attention, which must be installed and runs on PyTorch's threads.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import statistics
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import c_interface as tw
import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

DTYPES = {"fp32": (torch.float32, tw.F32), "fp16": (torch.float16, tw.F16), "bf16": (torch.bfloat16, tw.BF16)}


class Shape(NamedTuple):
    dtype: str
    layout: str
    batch: int
    heads: int
    kv_heads: int
    seqlen: int
    keys: int
    head_dim: int
    causal: int  # 0 or 1
    threads: int


COLUMNS = ("pass", *Shape._fields, "torch_ms", "tilewise_ms", "ratio", "runs", "max_difference")


def view(x: Tensor, dtype: int) -> tw.Tensor:
    """A (B,H,S,D) tensor as the (B,S,H,D) view that tilewise takes."""
    tensor = tw.Tensor(data=x.data_ptr(), dtype=dtype)
    tensor.shape[:] = [x.shape[i] for i in (0, 2, 1, 3)]
    tensor.stride[:] = [x.stride(i) for i in (0, 2, 1, 3)]
    return tensor


def lse_view(x: Tensor) -> tw.Tensor:
    tensor = tw.Tensor(data=x.data_ptr(), dtype=tw.F32)
    tensor.shape[:] = [*x.shape, 1]
    tensor.stride[:] = [*x.stride(), 1]
    return tensor


class Cell:
    """One shape: both libraries' forward and backward as calls without arguments."""

    def __init__(self, library: tw.Library, shape: Shape) -> None:
        dtype, layout, batch, heads, kv_heads, seqlen, keys, head_dim, causal, threads = shape
        torch_type, tw_type = DTYPES[dtype]

        def tensor(rows: int, heads: int) -> Tensor:
            extents = (batch, heads, rows, head_dim) if layout == "bhsd" else (batch, rows, heads, head_dim)
            x = torch.randn(extents, dtype=torch_type)
            return x if layout == "bhsd" else x.transpose(1, 2)

        q, dout = tensor(seqlen, heads), tensor(seqlen, heads)
        k, v = tensor(keys, kv_heads), tensor(keys, kv_heads)
        self.leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        self.dout, self.causal, self.inputs = dout, bool(causal), (q, k, v)
        self.grouped = kv_heads != heads
        self.torch_out = self.scaled_dot_product_attention(*self.leaves)
        self.out, self.dq, self.dk, self.dv = (torch.empty_like(x) for x in (q, q, k, v))
        self.lse = torch.empty(batch, heads, seqlen)
        self.library = library
        problem = self.problem = tw.init(tw.Attention)
        problem.device_type, problem.threads, problem.flags = tw.CPU, threads, tw.CAUSAL if causal else 0
        problem.q, problem.k, problem.v, problem.out = (view(x, tw_type) for x in (q, k, v, self.out))
        problem.lse = lse_view(self.lse)
        grad = self.grad = tw.init(tw.AttentionGrad)
        grad.dout, grad.dq, grad.dk, grad.dv = (view(x, tw_type) for x in (dout, self.dq, self.dk, self.dv))
        self.forward_plan, self.backward_plan = library.plan(problem), library.plan(problem, grad)
        size = max(self.forward_plan.workspace_bytes, self.backward_plan.workspace_bytes)
        self.workspace = torch.empty(size + 256, dtype=torch.uint8)
        self.execution = tw.init(tw.Exec)
        self.execution.workspace = (self.workspace.data_ptr() + 255) // 256 * 256
        self.execution.workspace_bytes = size

    def scaled_dot_product_attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, enable_gqa=self.grouped)

    def torch_forward(self) -> Tensor:
        with torch.no_grad():
            return self.scaled_dot_product_attention(*self.inputs)

    def torch_backward(self) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = torch.autograd.grad(self.torch_out, self.leaves, self.dout, retain_graph=True)
        return found

    def tilewise_forward(self) -> None:
        self.library.run(self.forward_plan, self.problem, None, self.execution)

    def tilewise_backward(self) -> None:
        self.library.run(self.backward_plan, self.problem, self.grad, self.execution)

    def difference(self, which: str) -> float:
        if which == "forward":
            pairs = [(self.torch_forward(), self.out)]
        else:
            pairs = list(zip(self.torch_backward(), (self.dq, self.dk, self.dv), strict=True))
        return max(float((a.float() - b.float()).abs().max()) for a, b in pairs)


class PackageCell(Cell):
    """The same with tilewise.torch, backward by torch.autograd.grad too."""

    def __init__(self, library: tw.Library, shape: Shape) -> None:
        import tilewise.torch

        super().__init__(library, shape)
        self.call = tilewise.torch.attention
        self.tilewise_out = self.attention(*self.leaves)

    def attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = self.call(q, k, v, causal=self.causal, layout="bhsd")
        return out

    def tilewise_forward(self) -> None:
        with torch.no_grad():
            self.out = self.attention(*self.inputs)

    def tilewise_backward(self) -> None:
        self.dq, self.dk, self.dv = torch.autograd.grad(self.tilewise_out, self.leaves, self.dout, retain_graph=True)


def measure(
    steps: Sequence[Callable[[], object]], clock: Callable[[], float], seconds: float, least: int
) -> list[list[float]]:
    """Runs the steps in turn; the times of each."""
    times: list[list[float]] = [[] for _ in steps]
    for step in steps:
        step()
    end = time.perf_counter() + seconds
    while len(times[0]) < least or time.perf_counter() < end:
        for step, list_of_times in zip(steps, times, strict=True):
            start = clock()
            step()
            list_of_times.append(clock() - start)
    return times


def numbers(text: str) -> list[int]:
    return [int(x) for x in text.split(",")]


def names(*known: str) -> Callable[[str], list[str]]:
    """A parser of comma-separated names."""

    def parse(text: str) -> list[str]:
        for name in text.split(","):
            if name not in known:
                raise argparse.ArgumentTypeError(f"'{name}' is not one of {', '.join(known)}")
        return text.split(",")

    return parse


def declared_arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, help="libtilewise.so")
    parser.add_argument("--through", choices=["c", "package"], default="c", help="how Tilewise is called (default c)")
    parser.add_argument("--threads", type=int, default=1, help="of both (default 1)")
    parser.add_argument("--heads", type=numbers, default=[1, 4, 16])
    parser.add_argument("--seqlen", type=numbers, default=[512, 2048, 8192])
    parser.add_argument("--keys", type=int, help="where they are not as many as --seqlen; with --causal no")
    parser.add_argument("--kv-heads", type=int, help="where they are fewer than --heads")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--head-dim", type=numbers, default=[64, 128, 256])
    parser.add_argument("--layout", type=names("bhsd", "bshd"), default=["bhsd", "bshd"])
    parser.add_argument("--causal", choices=["no", "yes", "both"], default="both")
    parser.add_argument("--pass", dest="passes", type=names("forward", "backward"), default=["forward", "backward"])
    parser.add_argument("--dtype", choices=DTYPES, default="fp32")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each cell and pass (default 1)")
    parser.add_argument("--least", type=int, default=3, help="runs of each at least (default 3)")
    parser.add_argument("--csv", help="write the rows to this file")
    return parser


def shapes_of(options: argparse.Namespace) -> Iterator[Shape]:
    causal = {"no": [0], "yes": [1], "both": [0, 1]}[options.causal]
    lists = (options.seqlen, options.heads, options.head_dim, causal, options.layout)
    for seqlen, heads, head_dim, is_causal, layout in itertools.product(*lists):
        kv_heads, keys = options.kv_heads or heads, options.keys or seqlen
        extents = (options.batch, heads, kv_heads, seqlen, keys, head_dim)
        yield Shape(options.dtype, layout, *extents, is_causal, options.threads)


def main() -> None:
    parser = declared_arguments()
    options = parser.parse_args()
    if options.keys and options.causal != "no":
        parser.error("--keys needs --causal no: the two align a causal mask of unequal lengths differently")
    if options.kv_heads and any(heads % options.kv_heads for heads in options.heads):
        parser.error(f"--kv-heads {options.kv_heads} does not divide each of --heads")
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    clock = time.thread_time if options.threads == 1 else time.perf_counter
    try:
        library = tw.Library(options.library)
    except OSError as error:
        parser.error(f"--library: {error}")
    kind_of_cell = PackageCell if options.through == "package" else Cell
    rows: list[dict[str, Any]] = []
    print(f"torch {torch.__version__}, {options.threads} thread(s), {options.dtype}", flush=True)
    for shape in shapes_of(options):
        try:
            cell = kind_of_cell(library, shape)
        except tw.Refused as error:
            parser.error(str(error))
        cell.tilewise_forward()  # backward reads out and lse
        for which in options.passes:
            steps = [getattr(cell, f"{name}_{which}") for name in ("torch", "tilewise")]
            times = measure(steps, clock, options.seconds, options.least)
            theirs, ours = (1e3 * statistics.median(t) for t in times)
            found = (*(round(x, 3) for x in (theirs, ours, theirs / ours)), len(times[0]))
            values = (which, *shape, *found, cell.difference(which))
            row = dict(zip(COLUMNS, values, strict=True))
            rows.append(row)
            print(" ".join(f"{name}={value}" for name, value in row.items()), flush=True)
    for which in options.passes:
        for mask, is_causal in (("full", 0), ("causal", 1)):
            ratios = [row["ratio"] for row in rows if row["pass"] == which and row["causal"] == is_causal]
            if ratios:
                mean = math.exp(statistics.fmean(math.log(r) for r in ratios))
                print(f"{which} {mask}: {len(ratios)} cells, least {min(ratios):.2f}, geometric mean {mean:.2f}")
    if options.csv:
        with open(options.csv, "w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
