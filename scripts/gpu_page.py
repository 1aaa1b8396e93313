#!/usr/bin/env python3
"""Writes docs/gpu-check.md from what scripts/gpu-check found: its table, and the cells of its bench.

    scripts/gpu_page.py build/gpu-check.csv

Of each part it takes the last run in the table. The cells lie beside the table, in gpu-check/cells.csv.
"""

import csv
import math
import pathlib
import sys
from collections.abc import Iterable

PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs/gpu-check.md"
PARTS = {"tests": "Tests", "sanitize": "Sanitizers", "bench": "Bench"}
PEERS = {"flash": "FA2", "cudnn": "cuDNN"}
KINDS = {"graph": "by graph", "single": "by single calls"}

TEXT = """# What gpu-check found

Written by `scripts/gpu_page.py` from what `scripts/gpu-check` ran on {gpu}.

{checks}
## Beside other libraries

{bench}{torch}. bf16, BSHD, random normal inputs; d: head size.

Each cell is measured in turns with its peers, by replays of a graph of many calls and by single calls. Ratios are
time(peer) / time(ours): above 1 Tilewise is faster. FA2 is PyTorch's flash back end, cuDNN PyTorch's cuDNN back end.
The backward of both peers adds to dQ in any order, ours too unless it is said to be deterministic. %: of the roofline.
Error: the distance from FA2's results, relative.

### In the mean

Geometric mean over the cells, in brackets the least of them.

{means}
{cells}"""


def table(heads: list[str], rows: Iterable[list[str]], left: int = 1) -> str:
    """`left`: how many columns are words; the others are numbers."""
    bars = ["---" if i < left else "---:" for i in range(len(heads))]
    return "".join(f"| {' | '.join(row)} |\n" for row in [heads, bars, *rows])


def last_runs(path: pathlib.Path) -> dict[str, list[dict[str, str]]]:
    """By part, the rows of its last run."""
    parts: dict[str, list[dict[str, str]]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            rows = parts.setdefault(row["part"], [])
            if rows and rows[0]["time"] != row["time"]:
                rows.clear()
            rows.append(row)
    return parts


def run_of(rows: list[dict[str, str]]) -> str:
    return f"Commit {rows[0]['commit']}, {rows[0]['time']}.\n\n"


def checks_of(parts: dict[str, list[dict[str, str]]]) -> str:
    text = ""
    for part in ("tests", "sanitize"):
        if part in parts:
            rows = [[row["what"], row["result"]] for row in parts[part]]
            text += f"## {PARTS[part]}\n\n{run_of(parts[part])}{table(['what', 'result'], rows, 2)}\n"
    return text


def ours(cells: list[dict[str, str]], which: str) -> list[dict[str, str]]:
    return [cell for cell in cells if cell["which"] == which and cell["kernel"].startswith("cuda.")]


def ratio_names(cells: list[dict[str, str]]) -> list[tuple[str, str]]:
    """(column, heading) of the ratios that were measured."""
    names = [(f"{peer}_{kind}_ratio", f"{PEERS[peer]}, {KINDS[kind]}") for peer in PEERS for kind in KINDS]
    return [(name, heading) for name, heading in names if any(cell[name] for cell in cells)]


def mean_and_least(cells: list[dict[str, str]], name: str) -> str:
    ratios = [float(cell[name]) for cell in cells if cell[name]]
    if not ratios:
        return "-"
    return f"{math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f} ({min(ratios):.2f})"


def means_of(cells: list[dict[str, str]], columns: list[tuple[str, str]]) -> str:
    groups: dict[tuple[str, str], list[dict[str, str]]] = {}
    for which in ("forward", "backward"):
        for cell in ours(cells, which):
            what = f"{which}{cell['name'].removeprefix('tilewise')}"
            for dim in (cell["head_dim"], "all"):
                groups.setdefault((what, dim), []).append(cell)
    order = sorted(groups, key=lambda group: (group[0], group[1] == "all", group[1].zfill(4)))
    order.sort(key=lambda group: group[0].startswith("backward"))
    rows = [[what, dim, *(mean_and_least(groups[what, dim], name) for name, _ in columns)] for what, dim in order]
    return table(["", "d", *(heading for _, heading in columns)], rows)


def number(cell: dict[str, str], name: str, shape: str) -> str:
    return format(float(cell[name]), shape) if cell[name] else "-"


def cells_of(cells: list[dict[str, str]], columns: list[tuple[str, str]]) -> str:
    text = ""
    for which in ("forward", "backward"):
        members = ours(cells, which)
        for name in dict.fromkeys(cell["name"] for cell in members):
            rows = [
                [
                    cell["head_dim"],
                    "causal" if cell["causal"] == "1" else "full",
                    f"{cell['batch']} x {cell['seqlen']}",
                    cell["heads"],
                    number(cell, "tflops", ".0f"),
                    number(cell, "roofline_percent", ".0f"),
                    *(number(cell, column, ".2f") for column, _ in columns),
                    number(cell, "error", ".0e"),
                ]
                for cell in members
                if cell["name"] == name
            ]
            heads = ["d", "mask", "sequences", "heads", "TFLOP/s", "%", *(heading for _, heading in columns), "error"]
            text += f"\n### {which.capitalize()}{name.removeprefix('tilewise')}\n\n{table(heads, rows, 0)}"
    return text


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    path = pathlib.Path(sys.argv[1])
    parts = last_runs(path)
    logs = path.with_suffix("")
    with (logs / "cells.csv").open(encoding="utf-8", newline="") as file:
        cells = list(csv.DictReader(file))
    device = (logs / "bench.log").read_text(encoding="utf-8").partition("\n")[0]
    last = max((row for rows in parts.values() for row in rows), key=lambda row: row["time"])
    columns = ratio_names(cells)
    PAGE.write_text(
        TEXT.format(
            gpu=last["gpu"],
            bench=run_of(parts["bench"]),
            checks=checks_of(parts),
            torch=device,
            means=means_of(cells, columns),
            cells=cells_of(cells, columns),
        ),
        encoding="utf-8",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
