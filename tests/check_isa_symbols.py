"""Fails if an object file built for an instruction set offers the linker code that baseline code might call.

A weak function is one that any object may supply; were it compiled with -mavx2, the whole program would need AVX2.
So each weak symbol must name the instruction set's own namespace. Usage: check_isa_symbols.py nm isa object...
"""

import re
import subprocess
import sys

WEAK = re.compile(r"^[0-9a-f]+ ([uvVwW]) (.*)$", re.M)


def weak_symbols(nm: str, object_file: str) -> list[str]:
    listing = subprocess.run([nm, "-C", object_file], capture_output=True, text=True, check=True).stdout
    return [name for _, name in WEAK.findall(listing)]


def main(nm: str, isa: str, object_files: list[str]) -> bool:
    built_for_isa = [name for name in object_files if re.search(rf"(^|[_/.]){isa}\.", name)]
    shared = 0
    for object_file in built_for_isa:
        for name in weak_symbols(nm, object_file):
            # A personality routine's address (DW.ref) is data that every object holds alike.
            if f"tilewise::cpu::{isa}::" in name or name.startswith("DW.ref."):
                continue
            shared += 1
            print(f"{object_file}: {name}")
    print(f"{len(built_for_isa)} objects built for {isa}, {shared} symbols that baseline code might take")
    return shared > 0 or not built_for_isa


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
