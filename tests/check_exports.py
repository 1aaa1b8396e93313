"""libtilewise.so exports exactly the functions that tilewise.h declares, each under a version; and it needs nothing but
the C and C++ run time."""

import re
import subprocess
import sys


def declared_functions(header_path: str) -> set[str]:
    with open(header_path, encoding="utf-8") as header:
        return set(re.findall(r"^TW_API [^;(]*?(tw_\w+)\(", header.read(), re.MULTILINE))


def exported_symbols(library_path: str) -> set[str]:
    command = ["nm", "-D", "--defined-only", library_path]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    symbols = [line.split()[-1] for line in lines.splitlines()]
    return {symbol for symbol in symbols if symbol != "TW_0.1"}


def needed_libraries(library_path: str) -> set[str]:
    lines = subprocess.run(["readelf", "-d", library_path], check=True, capture_output=True, text=True).stdout
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", lines))


def main() -> int:
    library_path, header_path = sys.argv[1:]
    wanted = {f"{name}@@TW_0.1" for name in declared_functions(header_path)}
    exported = exported_symbols(library_path)
    allowed = re.compile(r"(lib(stdc\+\+|m|gcc_s|c|pthread)|ld-linux.*)\.so\.\d+")
    strangers = {name for name in needed_libraries(library_path) if not allowed.fullmatch(name)}
    for name in sorted(wanted - exported):
        print(f"declared but not exported: {name}")
    for name in sorted(exported - wanted):
        print(f"exported but not declared: {name}")
    for name in sorted(strangers):
        print(f"needs {name}")
    print(f"{len(wanted)} functions declared, {len(exported)} exported")
    return 0 if wanted and wanted == exported and not strangers else 1


if __name__ == "__main__":
    sys.exit(main())
