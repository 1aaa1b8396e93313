"""Tilewise beside other attention libraries on a GPU: the same tensors, in turn, single calls and replays of a graph.

    python bench/gpu.py --library build/src/libtilewise.so
    python bench/gpu.py --library build/src/libtilewise.so --against other/libtilewise.so --peers flash

A cell is one shape; each line of it one library: median milliseconds of a single call between two events, and of a call
in a CUDA graph of many, TFLOP/s and percent of the roofline by the graph, and time(peer) / time by single calls and by
graph, for PyTorch's flash back end and cuDNN: above 1 it is faster than the peer. `error` is the distance from flash's
results, relative.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import os
import pathlib
import statistics
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import c_interface as tw
import peers
import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DTYPES = {"fp16": (torch.float16, tw.F16), "bf16": (torch.bfloat16, tw.BF16)}
SETTLING_REPLAYS, SINGLE_ROUNDS = 5, 15
REFERENCES = {"flash": "PyTorch flash", "cudnn": "PyTorch cuDNN"}  # that times and, the first, results are held against
RATIOS = tuple(f"{peer}_{kind}_ratio" for peer in REFERENCES for kind in ("single", "graph"))


class Shape(NamedTuple):
    which: str  # "forward" or "backward"
    dtype: str
    batch: int
    seqlen: int
    heads: int
    head_dim: int
    causal: int

    def text(self) -> str:
        mask = "causal" if self.causal else "full"
        return f"{self.which} {self.dtype} B{self.batch} S{self.seqlen} H{self.heads} D{self.head_dim} {mask}"


COLUMNS = (*Shape._fields, "name", "kernel", "single_ms", "graph_ms", "tflops", "roofline_percent", *RATIOS, "error")


def view(x: Tensor, dtype: int) -> tw.Tensor:
    tensor = tw.Tensor(data=x.data_ptr(), dtype=dtype)
    tensor.shape[:], tensor.stride[:] = x.shape, x.stride()
    return tensor


def open_library(path: str) -> tw.Library:
    """With the CUDA back end of its own build: a name alone would find the one that is already open."""
    folder = pathlib.Path(path).resolve().parent
    for place in (folder / "cuda", folder):
        if (place / "libtilewise_cuda.so.0").exists():
            os.environ["TILEWISE_CUDA_LIBRARY"] = str(place / "libtilewise_cuda.so.0")
            break
    library = tw.Library(str(pathlib.Path(path).resolve()))
    library.lib.tw_info(None, 0)  # opens the back end
    return library


class Ours:
    """One build of Tilewise on the inputs of a cell."""

    def __init__(self, library: tw.Library, inputs: peers.Inputs, shape: Shape, flags: int) -> None:
        dtype = DTYPES[shape.dtype][1]
        self.library, self.inputs = library, inputs  # whose memory the calls read
        self.out, self.dq, self.dk, self.dv = (torch.empty_like(x) for x in (inputs.q, inputs.q, inputs.k, inputs.v))
        self.lse = torch.empty(shape.batch, shape.heads, shape.seqlen, 1, device="cuda")
        problem = self.problem = tw.init(tw.Attention)
        problem.device_type, problem.flags = tw.CUDA, flags | (tw.CAUSAL if shape.causal else 0)
        problem.q, problem.k, problem.v = (view(x, dtype) for x in (inputs.q, inputs.k, inputs.v))
        problem.out, problem.lse = view(self.out, dtype), view(self.lse, tw.F32)
        grad = self.grad = tw.init(tw.AttentionGrad)
        grad.dout, grad.dq, grad.dk, grad.dv = (view(x, dtype) for x in (inputs.dout, self.dq, self.dk, self.dv))
        self.forward_run = self.bound(None)
        self.forward_run()
        if shape.which == "backward":
            self.backward_run = self.bound(grad)

    def bound(self, grad: tw.AttentionGrad | None) -> Callable[[], None]:
        plan = self.library.plan(self.problem, grad)
        workspace = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device="cuda")
        execution = tw.init(tw.Exec)
        execution.workspace, execution.workspace_bytes = workspace.data_ptr(), plan.workspace_bytes

        def run(keep: Tensor = workspace) -> None:
            execution.stream = torch.cuda.current_stream().cuda_stream
            self.library.run(plan, self.problem, grad, execution)

        return run

    def calls(self, name: str) -> peers.Calls:
        results = {"out": self.out, "dq": self.dq, "dk": self.dk, "dv": self.dv}
        return peers.Calls(name, self.forward_run, getattr(self, "backward_run", None), results)

    def said(self, which: str) -> dict[str, Any]:
        return self.library.explain(self.problem, self.grad if which == "backward" else None)


# ---- Timing.


def capture(call: Callable[[], object], count: int) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(count):
            call()
    return graph


def milliseconds(call: Callable[[], object]) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end))


def in_turn(count: int, rounds: int) -> Iterator[tuple[int, int]]:
    """(round, which), the order the other way round in every second one."""
    for turn in range(rounds):
        for i in range(count) if turn % 2 else reversed(range(count)):
            yield turn, i


def by_graph(steps: list[Callable[[], object]], flops: float, rounds: int, target_ms: float) -> list[float]:
    count = max(1, int(target_ms * 3e11 / flops))  # at about 300 TFLOP/s
    graphs = [capture(step, count) for step in steps]
    times: list[list[float]] = [[] for _ in steps]
    for _, i in in_turn(len(steps), rounds):
        for _ in range(SETTLING_REPLAYS):  # until its clocks and caches are steady
            graphs[i].replay()
        times[i].append(milliseconds(graphs[i].replay) / count)
    return [statistics.median(t) for t in times]


def by_single_calls(steps: list[Callable[[], object]]) -> list[float]:
    times: list[list[float]] = [[] for _ in steps]
    for turn, i in in_turn(len(steps), SINGLE_ROUNDS):
        elapsed = milliseconds(steps[i])
        if turn > 1:
            times[i].append(elapsed)
    return [statistics.median(t) for t in times]


# ---- A cell.


def distance(calls: peers.Calls, reference: peers.Calls, which: str) -> float:
    names = ("out",) if which == "forward" else ("dq", "dk", "dv")
    pairs = [(calls.results[name].float(), reference.results[name].float()) for name in names]
    return max(float((x - y).norm() / y.norm()) for x, y in pairs)


def inputs_of(shape: Shape) -> peers.Inputs:
    extents = (shape.batch, shape.seqlen, shape.heads, shape.head_dim)
    q, k, v, dout = (torch.randn(extents, device="cuda", dtype=DTYPES[shape.dtype][0]) for _ in range(4))
    return peers.Inputs(q, k, v, dout, bool(shape.causal))


def bind_all(
    libraries: dict[str, tw.Library], shape: Shape, options: argparse.Namespace
) -> tuple[list[peers.Calls], dict[str, dict[str, Any]], list[str]]:
    """Who runs, what the library says of its own, who is missing."""
    inputs, bound, said, missing = inputs_of(shape), [], {}, []
    variants = {"": 0, ", deterministic": tw.DETERMINISTIC} if shape.which == "backward" else {"": 0}
    for (library_name, library), (suffix, flags) in itertools.product(libraries.items(), variants.items()):
        name = library_name + suffix
        try:
            ours = Ours(library, inputs, shape, flags)
        except tw.Refused as error:
            missing.append(f"{name}: {error}")
            continue
        said[name] = ours.said(shape.which)
        bound.append(ours.calls(name))
    for peer in options.peers:
        try:
            calls = peers.PEERS[peer](inputs)
        except peers.Missing as error:
            missing.append(f"{peer}: {error}")
            continue
        if getattr(calls, shape.which):
            bound.append(calls)
    return bound, said, missing


def rows_of(libraries: dict[str, tw.Library], shape: Shape, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    bound, said, missing = bind_all(libraries, shape, options)
    for line in missing:
        yield {**shape._asdict(), "name": line, "kernel": "missing"}
    if not bound:
        return
    steps = [getattr(calls, shape.which) for calls in bound]
    flops = next((x["flops"] for x in said.values() if x.get("flops")), None)
    roofline = next((x["roofline_ms"] for x in said.values() if x.get("roofline_ms")), None)
    if not flops:
        pairs = shape.batch * shape.heads * shape.seqlen**2 * shape.head_dim / (2 if shape.causal else 1)
        flops = pairs * (4 if shape.which == "forward" else 10)
    graph = by_graph(steps, flops, options.rounds, options.milliseconds)
    single = by_single_calls(steps)
    at = {peer: i for peer, name in REFERENCES.items() for i, calls in enumerate(bound) if calls.name == name}
    for i, calls in enumerate(bound):
        row = {**shape._asdict(), "name": calls.name, "kernel": said.get(calls.name, {}).get("kernel", "")}
        row |= {"single_ms": single[i], "graph_ms": graph[i], "tflops": flops / graph[i] / 1e9}
        row["roofline_percent"] = 100 * roofline / graph[i] if roofline else None
        for peer, other in at.items():
            row[f"{peer}_single_ratio"] = single[other] / single[i]
            row[f"{peer}_graph_ratio"] = graph[other] / graph[i]
        if "flash" in at:
            row["error"] = distance(calls, bound[at["flash"]], shape.which)
        yield row


def text_of(row: dict[str, Any]) -> str:
    if row["kernel"] == "missing":
        return f"  missing: {row['name']}"
    ratios = ""
    for peer in REFERENCES:
        if f"{peer}_graph_ratio" in row:
            single, graph = row[f"{peer}_single_ratio"], row[f"{peer}_graph_ratio"]
            ratios += f" | {peer}/this: single {single:.3f} graph {graph:.3f}"
    if "error" in row:
        ratios += f" | error {row['error']:.1e}"
    percent = f" {row['roofline_percent']:5.1f} %" if row["roofline_percent"] else ""
    times = f"single {row['single_ms']:8.4f} ms graph {row['graph_ms']:8.4f} ms {row['tflops']:6.1f} TFLOP/s"
    return f"  {row['name']:26s} {times}{percent}{ratios} {row['kernel']}"


def summary(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Geometric mean and least of the ratios of our kernels, by pass, library, peer and head size."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        if row["kernel"] not in ("", "missing"):
            groups.setdefault((row["which"], row["name"]), []).append(row)
    for (which, name), members in groups.items():
        for ratio in RATIOS:
            by_dim: dict[str, list[float]] = {}
            for row in members:
                if ratio in row:
                    by_dim.setdefault(f"d {row['head_dim']}", []).append(row[ratio])
            if not by_dim:
                continue
            by_dim["all"] = [x for ratios in by_dim.values() for x in ratios]
            each = ", ".join(f"{dim} {statistics.geometric_mean(x):.3f} ({min(x):.3f})" for dim, x in by_dim.items())
            peer, kind, _ = ratio.split("_")
            yield f"{which} {name}, {kind}: {peer}/this in the mean (at least): {each}"


# ---- The command.


def numbers(text: str) -> list[int]:
    return [int(x) for x in text.split(",")]


def declared_arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, help="libtilewise.so")
    parser.add_argument("--against", help="another build of it, in the same cells")
    parser.add_argument("--kernel", help="ours, by name, as TILEWISE_FORCE_KERNEL has it")
    parser.add_argument("--peers", type=lambda text: text.split(",") if text else [], default=list(peers.PEERS))
    parser.add_argument("--pass", dest="passes", type=lambda text: text.split(","), default=["forward", "backward"])
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--head-dim", type=numbers, default=[64, 128, 256, 96, 192])
    parser.add_argument("--seqlen", type=numbers, default=[512, 1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--tokens", type=int, default=16384, help="batch * seqlen (default 16384)")
    parser.add_argument("--width", type=int, default=2048, help="heads * head_dim (default 2048)")
    parser.add_argument("--causal", type=numbers, default=[0, 1])
    parser.add_argument("--rounds", type=int, default=5, help="of graph replays (default 5)")
    parser.add_argument("--milliseconds", type=float, default=4, help="of a graph, about (default 4)")
    parser.add_argument("--csv", help="append the rows to this file")
    return parser


def append(path: str, rows: list[dict[str, Any]]) -> None:
    new = not pathlib.Path(path).exists()
    with open(path, "a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if new:
            writer.writeheader()
        writer.writerows(rows)


def main() -> int:
    options = declared_arguments().parse_args()
    if not torch.cuda.is_available():
        print("no GPU: PyTorch sees none")
        return 2
    if options.kernel:
        os.environ["TILEWISE_FORCE_KERNEL"] = options.kernel
    libraries = {"tilewise": open_library(options.library)}
    if options.against:
        libraries["the other build"] = open_library(options.against)
    torch.manual_seed(0)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {options.tokens} tokens", flush=True)
    rows: list[dict[str, Any]] = []
    lists = (options.passes, options.head_dim, options.causal, options.seqlen)
    for which, head_dim, causal, seqlen in itertools.product(*lists):
        batch, heads = max(1, options.tokens // seqlen), max(1, options.width // head_dim)
        shape = Shape(which, options.dtype, batch, seqlen, heads, head_dim, causal)
        print(shape.text(), flush=True)
        cell = list(rows_of(libraries, shape, options))
        for row in cell:
            print(text_of(row), flush=True)
        if options.csv:
            append(options.csv, cell)
        rows += cell
    for line in summary(rows):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
