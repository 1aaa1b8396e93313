#!/usr/bin/env python3
"""Time and memory of a prefill, with Tilewise and with naive attention in turn: a table, and on request a picture."""

import argparse
import ctypes
import pathlib
import re
import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple

import attention
from checkpoint import Checkpoint, packaged_model
from model import Model
from tokenizer import Tokenizer

TEXT = pathlib.Path(__file__).resolve().parents[2] / "data" / "alice.txt"
ATTENTIONS = {"Tilewise": attention.tiled, "naive": attention.naive}
MOST_RUNS = 3


class Cost(NamedTuple):
    total: float  # seconds
    attention: float  # seconds of these in attention
    peak_bytes: float  # of memory at once, beyond weights and cache


def memory(line: str) -> int:
    """Bytes of this line of /proc/self/status."""
    status = pathlib.Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(re.findall(rf"^{line}:\s*(\d+) kB", status, re.MULTILINE)[0])


def prefill(model: Model, ids: Sequence[int], attend: attention.Attention) -> Cost:
    cache = model.cache(len(ids))
    for array in cache:
        array.fill(0)  # takes its pages now
    ctypes.CDLL(None).malloc_trim(0)
    pathlib.Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts anew
    before = memory("VmRSS")

    model.attention = timed = attention.Timed(attend)
    started = time.perf_counter()
    model.hidden(ids, cache)
    total = time.perf_counter() - started
    return Cost(total, timed.seconds, memory("VmHWM") - before)


def measure(model: Model, ids: Sequence[int], seconds: float) -> dict[str, Cost]:
    """Medians of interleaved runs: MOST_RUNS each, or as many as start within so many seconds."""
    costs: dict[str, list[Cost]] = {name: [] for name in ATTENTIONS}
    started = time.perf_counter()
    while len(costs["naive"]) < MOST_RUNS and time.perf_counter() - started < seconds:
        for name, attend in ATTENTIONS.items():
            costs[name].append(prefill(model, ids, attend))
    return {name: Cost(*map(statistics.median, zip(*rows, strict=True))) for name, rows in costs.items()}


def print_row(length: int, costs: dict[str, Cost]) -> None:
    tiled, naive = costs.values()
    print(
        f"| {length:,} | {tiled.attention:.2f} | {naive.attention:.2f} | {naive.attention / tiled.attention:.1f} "
        f"| {tiled.total:.2f} | {naive.total:.2f} | {tiled.peak_bytes / 2**20:.0f} | {naive.peak_bytes / 2**20:.0f} |",
        flush=True,
    )


def draw(results: dict[int, dict[str, Cost]], path: pathlib.Path) -> None:
    import matplotlib.pyplot as plt

    panels = {
        "seconds in attention": lambda cost: cost.attention,
        "seconds in all": lambda cost: cost.total,
        "MiB beyond weights and cache": lambda cost: cost.peak_bytes / 2**20,
    }
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "prefill"})  # small, and the same bytes each time
    figure, axes = plt.subplots(1, len(panels), figsize=(11, 3.2), layout="constrained")
    for axis, (title, value) in zip(axes, panels.items(), strict=True):
        for name, marker in zip(ATTENTIONS, "os", strict=True):
            axis.plot(list(results), [value(costs[name]) for costs in results.values()], marker=marker, label=name)
        axis.set(title=title, xlabel="tokens", xscale="log", yscale="log", xticks=list(results))
        axis.set_xticklabels([f"{length:,}" for length in results], fontsize="small")
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].legend()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default="512,1024,2048,4096,8192", help="tokens, separated by commas")
    parser.add_argument("--seconds", type=float, default=45, help="for one length (default: 45)")
    parser.add_argument("--picture", type=pathlib.Path, help="SVG or PNG file; needs matplotlib")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    file = Checkpoint(packaged_model())
    ids = Tokenizer(file).encode(TEXT.read_text(encoding="utf-8"))
    model = Model(file, attention.tiled)
    del file  # and with it the mapped file

    prefill(model, ids[:64], attention.tiled)  # starts the threads
    print("| tokens | attention, s | naive | ratio | in all, s | naive | memory, MiB | naive |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    results = {}
    for length in map(int, arguments.lengths.split(",")):
        results[length] = measure(model, ids[:length], arguments.seconds)
        print_row(length, results[length])
    if arguments.picture:
        draw(results, arguments.picture)


if __name__ == "__main__":
    main()
