"""libtilewise_cuda.so exports its door alone and needs nothing but the C library; it opens without a driver, and then
tw_info says what is missing: a driver, a newer driver, a GPU.

Usage: check_cuda_library.py libtilewise_cuda.so libtilewise.so drivers
`drivers` holds a folder for each version of CUDA with a libcuda.so.1 in the place of the real one (preload/driver.c).
"""

import ctypes
import json
import os
import re
import subprocess
import sys
from typing import Any

DOOR = "tilewise_cuda_backend"
ALLOWED = re.compile(r"(lib(c|m|dl|rt|pthread)|ld-linux.*)\.so\.\d+")
REASONS = {
    "0": r"no NVIDIA driver is installed",
    "12080": r"the NVIDIA driver serves CUDA 12\.8; this build needs one for CUDA \d+\.0 or later",
    "99000": r"this process sees no NVIDIA GPU",
}
ASK = "import sys, check_cuda_library as check; print(check.reason(sys.argv[1]))"


def answers(*command: str, pattern: str) -> set[str]:
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return set(re.findall(pattern, lines, re.MULTILINE))


def reason(library_path: str) -> Any:
    """Why no GPU serves, as this process sees it."""
    library = ctypes.CDLL(library_path)
    library.tw_info.argtypes, library.tw_info.restype = (ctypes.c_char_p, ctypes.c_size_t), ctypes.c_size_t
    answer = ctypes.create_string_buffer(library.tw_info(None, 0) + 1)
    library.tw_info(answer, len(answer))
    [cuda] = [backend for backend in json.loads(answer.value)["backends"] if backend["name"] == "cuda"]
    return cuda["reason"]


def reason_with(driver: str, library_path: str) -> str:
    """The same of a process that meets this driver."""
    environment = os.environ | {"LD_LIBRARY_PATH": driver, "PYTHONPATH": os.path.dirname(os.path.abspath(__file__))}
    command = [sys.executable, "-B", "-c", ASK, library_path]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.strip()


def faults(cuda_library: str, library: str, drivers: str) -> list[str]:
    exported = answers("nm", "-D", "--defined-only", cuda_library, pattern=r"(\S+)$")
    needed = answers("readelf", "-d", cuda_library, pattern=r"\(NEEDED\).*\[(.*)\]")
    found = [f"exports {name}" for name in sorted(exported - {DOOR})]
    found += [f"needs {name}" for name in sorted(needed) if not ALLOWED.fullmatch(name)]
    door = getattr(ctypes.CDLL(cuda_library, mode=os.RTLD_NOW | os.RTLD_LOCAL), DOOR)
    door.restype = ctypes.c_void_p
    if not door():
        found.append(f"{DOOR}() is null")
    for version, expected in REASONS.items():
        said = reason_with(os.path.join(drivers, version), library)
        print(f"driver {version}: {said}")
        if not re.fullmatch(expected, said):
            found.append(f"with driver {version} tw_info says '{said}', not '{expected}'")
    return found


if __name__ == "__main__":
    wrong = faults(*sys.argv[1:])
    print(*wrong, sep="\n")
    sys.exit(bool(wrong))
