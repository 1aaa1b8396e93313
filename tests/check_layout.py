"""The layout of tilewise.h and its functions against the written table of them, field by field, by each compiler given,
as C and as C++.

    check_layout.py tilewise.h abi.txt COMPILER..      checks
    check_layout.py tilewise.h --write COMPILER        prints the table: where a struct has grown, or a number is new

Programs that were compiled with an older header run on a newer library because what stands in the table never changes:
a struct grows at its end, numbers and functions are added.
"""

import difflib
import itertools
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator

COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
STRUCT = re.compile(r"typedef struct (tw_\w+) \{(.*?)\n\} \1;", re.DOTALL)
ENUM = re.compile(r"enum \{(.*?)\}", re.DOTALL)
FUNCTION = re.compile(r"^TW_API ([^;]*);", re.MULTILINE)
FUNCTION_POINTER = re.compile(r"\(\*(\w+)\)\s*\(.*", re.DOTALL)
NAME = re.compile(r"(\w+)(?:\[\d+\])?\s*(?:,|$)")

Structs = dict[str, list[str]]  # the fields of each


def fields_of(body: str) -> Iterator[str]:
    for declaration in filter(None, map(str.strip, body.split(";"))):
        pointer = FUNCTION_POINTER.search(declaration)
        if pointer:
            yield pointer[1]
            continue
        yield from NAME.findall(declaration)


def numbers_of(body: str) -> list[str]:
    return [entry.split("=")[0].strip() for entry in body.split(",") if "=" in entry]


def names_in(header: pathlib.Path) -> tuple[Structs, list[str], list[str]]:
    """({struct: [fields]}, [names of numbers], [declarations of functions])"""
    text = COMMENT.sub("", header.read_text(encoding="utf-8"))
    structs = {name: list(fields_of(body)) for name, body in STRUCT.findall(text)}
    numbers = itertools.chain.from_iterable(numbers_of(body) for body in ENUM.findall(text))
    functions = [" ".join(declaration.split()) for declaration in FUNCTION.findall(text)]
    return structs, [*numbers], functions


def program(structs: Structs, numbers: list[str], functions: list[str]) -> str:
    lines = ['#include "tilewise/tilewise.h"', "#include <stdio.h>", "int main(void) {"]
    for struct, fields in structs.items():
        lines.append(f'  printf("{struct} %zu\\n", sizeof({struct}));')
        for field in fields:
            size = f"sizeof((({struct} *)0)->{field})"
            lines.append(f'  printf("  {field} %zu %zu\\n", offsetof({struct}, {field}), {size});')
    lines += [f'  printf("{number} %d\\n", (int){number});' for number in numbers]
    lines += [f'  puts("{function}");' for function in functions]
    return "\n".join([*lines, "  return 0;", "}", ""])


def table_by(compiler: str, language: str, header: pathlib.Path, source: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        binary = f"{folder}/layout"
        include = header.parent.parent
        command = [compiler, "-x", language, "-", f"-I{include}", "-o", binary]
        subprocess.run(command, input=source, text=True, check=True)
        return subprocess.run([binary], check=True, capture_output=True, text=True).stdout


def holes_in(table: str) -> Iterator[str]:
    """Structs have no padding: their bytes may be compared."""
    struct, size, end = "", 0, 0
    for line in [*table.splitlines(), "end 0"]:
        words = line.split()
        if not line.startswith(" "):
            if end != size:
                yield f"{struct} ends with padding"
            is_struct = re.fullmatch(r"tw_\w+ \d+", line)
            struct, size, end = words[0], int(words[1]) if is_struct else 0, 0
            continue
        if int(words[1]) != end:
            yield f"padding before {struct}.{words[0]}"
        end = int(words[1]) + int(words[2])


def main() -> int:
    header_path, table_path, *compilers = sys.argv[1:]
    header = pathlib.Path(header_path)
    structs, numbers, functions = names_in(header)
    source = program(structs, numbers, functions)
    if table_path == "--write":
        print(table_by(compilers[0], "c", header, source), end="")
        return 0

    written = pathlib.Path(table_path).read_text(encoding="utf-8")
    faults = list(holes_in(written))
    for compiler, language in itertools.product(compilers, ("c", "c++")):
        found = table_by(compiler, language, header, source)
        sides = (table_path, f"{compiler} as {language}")
        faults += difflib.unified_diff(written.splitlines(), found.splitlines(), *sides, lineterm="")
    for fault in faults:
        print(fault)
    fields = sum(map(len, structs.values()))
    counts = f"{len(structs)} structs, {fields} fields, {len(numbers)} numbers, {len(functions)} functions"
    print(f"{counts}; compilers: {' '.join(compilers)}")
    return 1 if faults or not (fields and numbers and functions) else 0


if __name__ == "__main__":
    sys.exit(main())
