"""Fails if an FMA loop of an instruction set touches the stack or loads more than its tile needs.

Both are how compilers have slowed these loops: sums that spill, and loads repeated as operands of each FMA.
Usage: check_hot_loops.py objdump isa object...
"""

import dataclasses
import re
import subprocess
import sys
from collections.abc import Iterator

MOST_LOADS_PER_FMA = 8 / 12  # the widest tile: 2 vectors and 6 broadcasts for 12 FMAs
FEWEST_FMAS = 12  # a loop with fewer is no tile product
INSTRUCTION = re.compile(r"^ *([0-9a-f]+):\t(.*)$", re.M)

Pattern = re.Pattern[str]


@dataclasses.dataclass
class Processor:
    jump: Pattern  # its group is the target's address
    fma: Pattern  # sum += a * b
    no_product: Pattern  # what a loop that only sums products does not do
    load: Pattern
    load_of_two: Pattern
    stack: str


X86 = Processor(
    jump=re.compile(r"j\w+\s+([0-9a-f]+)"),
    fma=re.compile(r"vfmadd231ps"),  # polynomials are p = p * x + c, another form
    no_product=re.compile(r"$."),
    load=re.compile(r"(?!lea).*\("),
    load_of_two=re.compile(r"$."),
    stack="%rsp",  # rbp is a plain register here: frame pointers are omitted
)
ARM = Processor(
    jump=re.compile(r"(?:b|b\.\w+|cbn?z\s+\w+,|tbn?z\s+\w+, #\w+,)\s+([0-9a-f]+) <"),
    fma=re.compile(r"fm(la|ad)\s"),  # polynomials too, but those stand among subtractions and comparisons
    no_product=re.compile(r"f(add|sub|mul|cm\w+|max\w*|min\w*|div|rint\w)\s"),
    load=re.compile(r"ld"),
    load_of_two=re.compile(r"ldp"),
    stack="[sp",
)


def innermost_loops(objdump: str, object_file: str, jump_of: Pattern) -> Iterator[tuple[str, list[str]]]:
    """Yields (address, instructions) of each backward jump's body that holds no other jump."""
    command = [objdump, "-d", "--no-show-raw-insn", object_file]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    # Sections each count from 0: a jump stays within its own.
    for section in listing.split("Disassembly of section")[1:]:
        lines = INSTRUCTION.findall(section)
        index = {int(address, 16): i for i, (address, _) in enumerate(lines)}
        for i, (_, instruction) in enumerate(lines):
            jump = jump_of.match(instruction)
            start = index.get(int(jump[1], 16)) if jump else None
            if start is None or start > i:
                continue
            body = [text for _, text in lines[start : i + 1]]
            if sum(bool(jump_of.match(text)) for text in body) == 1:
                yield lines[start][0], body


def faults(body: list[str], fmas: int, processor: Processor) -> list[str]:
    loads = sum(bool(pattern.match(text)) for pattern in (processor.load, processor.load_of_two) for text in body)
    stack = [text for text in body if processor.stack in text]
    if loads > MOST_LOADS_PER_FMA * fmas:
        stack.append(f"{loads} loads for {fmas} FMAs")
    return stack


def main(objdump: str, isa: str, object_files: list[str]) -> bool:
    processor = ARM if re.match("neon|sve", isa) else X86
    found = bad = 0
    for object_file in object_files:
        if not re.search(rf"(^|[_/.]){isa}\.", object_file):
            continue
        for address, body in innermost_loops(objdump, object_file, processor.jump):
            fmas = sum(bool(processor.fma.match(text)) for text in body)
            if fmas < FEWEST_FMAS or any(processor.no_product.match(text) for text in body):
                continue
            found += 1
            wrong = faults(body, fmas, processor)
            bad += bool(wrong)
            print(f"{object_file} {address}: {len(body)} instructions, {fmas} FMAs", *wrong, sep="; ")
    print(f"{found} FMA loops, {bad} at fault")
    return bad > 0 or found == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
