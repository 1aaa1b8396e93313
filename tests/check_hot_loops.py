"""Fails if an FMA loop of an instruction set touches the stack or loads more than its tile needs.

Both are how compilers have slowed these loops: sums that spill, and loads repeated as operands of each FMA.
Usage: check_hot_loops.py isa object...
"""
import re
import subprocess
import sys

MOST_LOADS_PER_FMA = 8 / 12  # the widest tile: 2 vectors and 6 broadcasts for 12 FMAs
FEWEST_FMAS = 12  # a loop with fewer is no tile product
SUM = "vfmadd231ps"  # sum += a * b; polynomials are p = p * x + c, another form

INSTRUCTION = re.compile(r"^ *([0-9a-f]+):\t(.*)$", re.M)
JUMP = re.compile(r"j\w+\s+([0-9a-f]+)")


def innermost_loops(object_file):
    """Yields (address, instructions) of each backward jump's body that holds no other jump."""
    command = ["objdump", "-d", "--no-show-raw-insn", object_file]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    # Sections each count from 0: a jump stays within its own.
    for section in listing.split("Disassembly of section")[1:]:
        lines = INSTRUCTION.findall(section)
        index = {int(address, 16): i for i, (address, _) in enumerate(lines)}
        for i, (_, instruction) in enumerate(lines):
            jump = JUMP.match(instruction)
            start = index.get(int(jump[1], 16)) if jump else None
            if start is None or start > i:
                continue
            body = [text for _, text in lines[start : i + 1]]
            if sum(text.startswith("j") for text in body) == 1:
                yield lines[start][0], body


def faults(body, fmas):
    loads = sum("(" in text and not text.startswith("lea") for text in body)
    stack = [text for text in body if "%rsp" in text]  # rbp is a plain register here: frame pointers are omitted
    if loads > MOST_LOADS_PER_FMA * fmas:
        stack.append(f"{loads} loads for {fmas} FMAs")
    return stack


def main(isa, object_files):
    found = bad = 0
    for object_file in object_files:
        if not re.search(rf"(^|[_/.]){isa}\.", object_file):
            continue
        for address, body in innermost_loops(object_file):
            fmas = sum(SUM in text for text in body)
            if fmas < FEWEST_FMAS:
                continue
            found += 1
            wrong = faults(body, fmas)
            bad += bool(wrong)
            print(f"{object_file} {address}: {len(body)} instructions, {fmas} FMAs", *wrong, sep="; ")
    print(f"{found} FMA loops, {bad} at fault")
    return bad > 0 or found == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
