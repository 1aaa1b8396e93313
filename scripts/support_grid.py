#!/usr/bin/env python3
"""Writes docs/support.md, what each kernel serves, from what kernels_test ran; with --check, compares instead.

    scripts/support_grid.py build/test-results/kernels_test*.json
    scripts/support_grid.py --check build/test-results/kernels_test*.json
    scripts/support_grid.py --gpu gpu_kernels_test.*.json   docs/support-gpu.md, from what gpu_kernels_test ran

Kernels for other instruction sets than this machine's have no results here: the page keeps their lines as they are.
The table of features holds for all kernels of a family that ran, and so says the same on every machine.
"""

import argparse
import dataclasses
import difflib
import json
import pathlib
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any

DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs"
PASSES = ["forward", "backward"]
TYPES = ["fp32", "fp16", "bf16"]
LAYOUTS = [f"{mixed}{layout}" for mixed in ("", "mixed-") for layout in ("bhsd", "gaps", "unaligned")]
KERNEL_LINE = re.compile(r"\| `((?:cpu|cuda)\.[a-z0-9_.]+)` \|")


@dataclasses.dataclass
class Page:
    """Which kernels a page is about."""

    path: pathlib.Path
    program: str
    device: str  # the first part of their names
    families: list[str]
    gives_reasons: bool  # of refusals; those of GPUs name each size


CPU = Page(DOCS / "support.md", "kernels_test", "cpu", ["tiled", "standard", "v1", "reference"], True)
GPU = Page(DOCS / "support-gpu.md", "gpu/kernels_test", "cuda", ["v2", "v1", "standard", "plain"], False)


class Case:
    """One case of the table: the words of its name, and by kernel "served", "failed" or why it was refused."""

    def __init__(self, test: dict[str, Any]) -> None:
        self.name = test["case"]
        self.words = {word.partition("=")[0] for word in self.name.split()}
        size = {key: int(number) for key, number in re.findall(r"\b(B|Sq|Sk|D|Dv)(\d+)\b", self.name)}
        self.empty = 0 in (size["B"], size["Sq"], size["Sk"])
        self.dims = {size["D"], size.get("Dv", size["D"])}
        heads = re.search(r"\bH(\d+)/(\d+)\b", self.name)
        self.shares_keys = heads is not None and heads[1] != heads[2]
        self.outcomes = {
            name: "failed" if test.get("failures") else outcome.rpartition("refuses: ")[2]
            for name, outcome in test.items()
            if name.startswith(("cpu.", "cuda."))
        }


def has(*words: str) -> Callable[[Case], bool]:
    """Cases with one of these words in their names."""
    return lambda case: not case.words.isdisjoint(words)


@dataclasses.dataclass
class Feature:
    title: str
    shows: Callable[[Case], bool]
    passes: list[str] = dataclasses.field(default_factory=lambda: PASSES)


TEXT = """# What each kernel serves

Written by `scripts/support_grid.py` from what `tests/{program}.cpp` ran: every kernel on every case, compared with
the oracle. What a kernel does not serve it refuses by name, and the next one of the table is asked.

## Features

The cases of a feature are those that use it, most of them together with others.

| feature | passes | cases | {families} |
| --- | --- | ---: |{bars}
{features}

{reasons}
## Kernels

The least and the greatest head size that ran in each type, of q and k or of v and out. All that ran:
{dims}.

| kernel | passes | fp32 | fp16 | bf16 |
| --- | --- | --- | --- | --- |
{kernels}
"""

# What the page has a row for, and which cases show it.
FORWARD, BACKWARD = PASSES[:1], PASSES[1:]
FEATURES = [
    Feature("fp32", has("fp32")),
    Feature("fp16", has("fp16")),
    Feature("bf16", has("bf16")),
    Feature("`out` in fp32", has("fp32-out")),
    Feature("heads outside of rows, gaps, odd addresses", has(*LAYOUTS)),
    Feature("several heads of q for one of k and v", lambda case: case.shares_keys),
    Feature("Dv other than D", lambda case: len(case.dims) > 1),
    Feature("no row, key or sequence", lambda case: case.empty),
    Feature("packed: `cu_seqlens_q`, `cu_seqlens_k`", has("packed-q", "packed-k")),
    Feature("`seqused_q`", has("seqused-q")),
    Feature("`seqused_k`", has("seqused-k")),
    Feature("`leftpad_k`", has("leftpad")),
    Feature("`batch_index_k`", has("batch-index")),
    Feature("`TW_CAUSAL`", has("causal")),
    Feature("`TW_TOP_LEFT`", has("top-left")),
    Feature("`window_left`, `window_right`", has("left", "right")),
    Feature("`attention_chunk`", has("chunk")),
    Feature("`key_begin`, `key_end`", has("key-begin", "key-end")),
    Feature("`q_positions`, `k_positions`", has("q-positions", "k-positions")),
    Feature("`mask`", has("mask")),
    Feature("`TW_MASK_TAIL`", has("mask-tail")),
    Feature("`bias`", has("bias")),
    Feature("`alibi_slopes`", has("alibi")),
    Feature("`softmax_scale`", has("scale")),
    Feature("`softcap`", has("softcap")),
    Feature("`sink`", has("sink")),
    Feature("`dropout_p`", has("dropout")),
    Feature("`prior_out`, `prior_lse`", has("prior")),
    Feature("no `lse`", has("no-lse"), FORWARD),
    Feature("`num_splits`, which changes nothing on a CPU", has("splits"), FORWARD),
    Feature("`TW_BATCH_INVARIANT`", has("batch-invariant"), FORWARD),
    Feature("`TW_DETERMINISTIC`", has("deterministic"), BACKWARD),
    Feature("`dlse`", has("dlse"), BACKWARD),
    Feature("`dbias`", has("dbias"), BACKWARD),
    Feature("`dsink`", has("dsink"), BACKWARD),
    Feature("only some of `dq`, `dk`, `dv`", has("no-dq", "no-dk", "no-dv"), BACKWARD),
    Feature("gradients in fp32", has("fp32-gradients"), BACKWARD),
    Feature("`TW_GRAD_ACCUMULATE`", has("accumulate"), BACKWARD),
]


def read_cases(results: Iterable[pathlib.Path]) -> list[Case]:
    suites = [suite for file in results for suite in json.loads(file.read_text(encoding="utf-8"))["testsuites"]]
    return [Case(test) for suite in suites for test in suite["testsuite"] if "case" in test]


def ranges(numbers: Iterable[int]) -> str:
    """Neighbours joined: "1-9, 15"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def is_part(part: str, kernel: str) -> bool:
    """So are "cpu.tiled" and "cpu.tiled.avx2" of "cpu.tiled.avx2.forward"."""
    return kernel.startswith(f"{part}.")


class Grid:
    def __init__(self, about: Page, cases: list[Case]) -> None:
        self.about = about
        self.cases = cases
        self.reasons: list[str] = []  # of refusals, in the order of their marks

    def mark(self, reason: str) -> str:
        if not self.about.gives_reasons:
            return ""
        if reason not in self.reasons:
            self.reasons.append(reason)
        return f"[{self.reasons.index(reason) + 1}]"

    def outcomes(self, cases: list[Case], part: str, pass_: str) -> set[str]:
        return {
            outcome
            for case in cases
            for kernel, outcome in case.outcomes.items()
            if is_part(part, kernel) and kernel.endswith(pass_)
        }

    def cell(self, cases: list[Case], family: str, passes: list[str]) -> str:
        """Either "yes", or each pass that is not served, or not always: "backward in part [1]"."""
        troubles = []
        for pass_ in passes:
            outcomes = self.outcomes(cases, f"{self.about.device}.{family}", pass_)
            refusals = sorted(outcomes - {"served"})
            marks = "".join(self.mark(reason) for reason in refusals)
            if refusals or not outcomes:
                troubles.append(f"{pass_} {'in part' if 'served' in outcomes else 'not'} {marks}".strip())
        return ", ".join(troubles) or "yes"

    def feature_line(self, feature: Feature) -> str:
        cases = [case for case in self.cases if feature.shows(case)]
        passes = [pass_ for pass_ in feature.passes if self.outcomes(cases, self.about.device, pass_)]
        if not passes:
            sys.exit(f"error: no case that ran shows {feature.title}")
        cells = [self.cell(cases, family, passes) for family in self.about.families]
        return f"| {feature.title} | {', '.join(passes)} | {len({case.name for case in cases})} | {' | '.join(cells)} |"

    def kernel_line(self, kernel: str) -> str:
        """`kernel` is a name without its pass."""
        passes = [pass_ for pass_ in PASSES if self.outcomes(self.cases, kernel, pass_)]
        cells = []
        for type_ in TYPES:
            cases = [case for case in self.cases if type_ in case.words]
            dims = {
                dim
                for case in cases
                for dim in case.dims
                if any("served" in self.outcomes([case], kernel, pass_) for pass_ in passes)
            }
            cells.append(f"{min(dims)} to {max(dims)}" if dims else "-")
        return f"| `{kernel}` | {', '.join(passes)} | {' | '.join(cells)} |"

    def kernel_lines(self, page: str) -> list[str]:
        """Those that ran, and of the others what the page says."""
        lines = {match[1]: match.string for match in map(KERNEL_LINE.match, page.splitlines()) if match}
        for kernel in {name.rpartition(".")[0] for case in self.cases for name in case.outcomes}:
            lines[kernel] = self.kernel_line(kernel)
        order = self.about.families.index
        return [lines[kernel] for kernel in sorted(lines, key=lambda name: (order(name.split(".")[1]), name))]

    def page(self, before: str) -> str:
        features = [self.feature_line(feature) for feature in FEATURES]
        reasons = [f"- [{number}] {reason}\n" for number, reason in enumerate(self.reasons, 1)]
        return TEXT.format(
            program=self.about.program,
            families=" | ".join(self.about.families),
            bars=" --- |" * len(self.about.families),
            features="\n".join(features),
            reasons="".join(reasons),
            kernels="\n".join(self.kernel_lines(before)),
            dims=ranges(set().union(*(case.dims for case in self.cases))),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=pathlib.Path, nargs="+", help="JSON files that kernels_test left")
    parser.add_argument("--gpu", action="store_true", help="the page of kernels for GPUs, from gpu_kernels_test")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page says otherwise")
    arguments = parser.parse_args()
    missing = [str(file) for file in arguments.results if not file.exists()]
    if missing:
        sys.exit(f"error: kernels_test has left no {', '.join(missing)}; run it first, with all its cases")
    about = GPU if arguments.gpu else CPU
    before = about.path.read_text(encoding="utf-8") if about.path.exists() else ""
    page = Grid(about, read_cases(arguments.results)).page(before)
    if not arguments.check:
        about.path.write_text(page, encoding="utf-8")
    elif page != before:
        versions = before.splitlines(), page.splitlines()
        difference = difflib.unified_diff(*versions, about.path.name, "what the tests ran", lineterm="")
        error = f"error: {about.path.name} is not what the tests ran. To write it anew, run"
        command = f"  scripts/support_grid.py {' '.join(map(str, arguments.results))}"
        sys.exit("\n".join([*difference, "", error, command]))


if __name__ == "__main__":
    main()
