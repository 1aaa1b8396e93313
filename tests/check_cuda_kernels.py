"""Fails if a CUDA kernel spills registers, keeps anything in local memory, or draws advice of the assembler (C75xx).

Each is a kernel that got slower unnoticed. Reads what src/cuda/nvcc_report.sh keeps beside each object, so it needs no
GPU and no disassembler; and prints the units that took the most CPU time to compile.
Usage: check_cuda_kernels.py object...
"""

import dataclasses
import re
import subprocess
import sys
from collections.abc import Iterator

SLOWEST_SHOWN = 5


@dataclasses.dataclass
class Allowance:
    """Kernels that may use local memory, in bytes a thread. All others may use none, in any architecture."""

    unit: str  # of a .cu file's path below src/cuda/, as a regular expression
    kernel: str  # of the kernel's name
    architectures: tuple[str, ...]
    most_bytes: int
    why: str


ALLOWANCES = (
    Allowance(
        unit=r"v2/backward_.*",
        kernel=r"BackwardTile\{[^}]*, 227\}",
        architectures=("sm_80",),
        most_bytes=64,
        why="code for sm_80 runs on GPUs with 163 or 99 KB of shared memory, which never start these tiles",
    ),
)

KERNEL = re.compile(
    r"Compiling entry function '(?P<name>[^']+)' for '(?P<architecture>\w+)'.*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<stored>\d+) bytes spill stores, (?P<loaded>\d+) bytes spill loads.*?"
    r"Used (?P<registers>\d+) registers(?:[^\n]*?(?P<all>\d+) bytes cumulative stack size)?",
    re.DOTALL,
)
ADVICE = re.compile(r"^.*\(C75\d\d\).*$", re.MULTILINE)
TIMES = re.compile(r"^(\d+)m([\d.]+)s (\d+)m([\d.]+)s$", re.MULTILINE)


@dataclasses.dataclass
class Kernel:
    unit: str
    name: str
    architecture: str
    registers: int
    local_bytes: int
    spilled_bytes: int

    def allowed_bytes(self) -> int:
        return max(
            (
                allowance.most_bytes
                for allowance in ALLOWANCES
                if re.fullmatch(allowance.unit, self.unit)
                and re.search(allowance.kernel, self.name)
                and self.architecture in allowance.architectures
            ),
            default=0,
        )


@dataclasses.dataclass
class Report:
    unit: str
    text: str

    def kernels(self) -> Iterator[Kernel]:
        for found in KERNEL.finditer(self.text):
            yield Kernel(
                unit=self.unit,
                name=found["name"],
                architecture=found["architecture"],
                registers=int(found["registers"]),
                local_bytes=int(found["all"] or found["stack"]),  # all: with functions that it calls
                spilled_bytes=int(found["stored"]) + int(found["loaded"]),
            )

    def is_whole(self) -> bool:
        """The times are its last lines."""
        return TIMES.search(self.text) is not None

    def cpu_seconds(self) -> float:
        """Of the compiler and whatever it started."""
        user_minutes, user, system_minutes, system = map(float, TIMES.findall(self.text)[-1])
        return 60 * (user_minutes + system_minutes) + user + system


def read(object_file: str) -> Report:
    unit = re.sub(r".*\.dir/(\./)?|\.o$", "", object_file)
    with open(f"{object_file}.ptxas", encoding="utf-8") as report:
        plain_names = subprocess.run(["c++filt"], stdin=report, capture_output=True, text=True, check=True).stdout
    return Report(unit, plain_names)


def main(object_files: list[str]) -> bool:
    reports = [read(object_file) for object_file in object_files if object_file.endswith(".cu.o")]
    kernels = [kernel for report in reports for kernel in report.kernels()]
    faults = [f"{report.unit}: {advice}" for report in reports for advice in ADVICE.findall(report.text)]
    faults += [f"{report.unit}: what the compiler said of it is cut off" for report in reports if not report.is_whole()]
    for kernel in kernels:
        allowed = kernel.allowed_bytes()
        if kernel.local_bytes > allowed or (kernel.spilled_bytes and not allowed):
            faults.append(
                f"{kernel.unit}: {kernel.name} for {kernel.architecture}: {kernel.local_bytes} bytes of local memory, "
                f"{kernel.spilled_bytes} bytes spilled and reloaded, {kernel.registers} registers; allowed: {allowed}"
            )
    print(*faults, sep="\n")
    architectures = sorted({kernel.architecture for kernel in kernels})
    print(f"{len(kernels)} kernels for {', '.join(architectures)}, {len(faults)} at fault")
    seconds = sorted(((report.cpu_seconds(), report.unit) for report in reports if report.is_whole()), reverse=True)
    print(f"{sum(second for second, _ in seconds):.0f} CPU seconds to compile; the slowest units:")
    print(*(f"{second:6.1f}  {unit}" for second, unit in seconds[:SLOWEST_SHOWN]), sep="\n")
    return bool(faults) or not kernels


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
