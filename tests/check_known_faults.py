"""docs/known-faults.md against the tests: each test that it names exists, in the file of its section, with the report
named in that file; and each test of tests/reports/ is in the document."""

import collections
import pathlib
import re
import sys
from collections.abc import Iterator

REPORT = re.compile(r"[\w.-]+/[\w.-]+#\d+")
CPP_TEST = re.compile(r"^TEST(?:_P|_F)?\((\w+), (\w+)\)", re.MULTILINE)
PYTHON_TEST = re.compile(r"^\s*def (test_\w+)\(", re.MULTILINE)


def tests_in(path: pathlib.Path) -> set[str]:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return set(PYTHON_TEST.findall(text))
    return {f"{suite}.{name}" for suite, name in CPP_TEST.findall(text)}


def rows_of(document: str) -> Iterator[tuple[str, str, str]]:
    """(section, report, last cell) of every row of a table."""
    section = ""
    for line in document.splitlines():
        if line.startswith("## "):
            section = line[3:]
        elif line.startswith("| ") and not line.startswith(("| report", "| ---")):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            yield section, cells[0], cells[-1]


def faults_of_row(root: pathlib.Path, section: str, report: str, last: str) -> Iterator[str]:
    if not REPORT.fullmatch(report):
        yield f"{report} is not a report: owner/repository#number"
    if not section.startswith("tests/"):
        return
    path = root / section
    if not path.exists():
        yield f"{report}: there is no {section}"
        return
    if last.strip("`") not in tests_in(path):
        yield f"{report}: no test {last} in {section}"
    if report not in path.read_text(encoding="utf-8"):
        yield f"{report}: {section} does not name it"


def main() -> int:
    root = pathlib.Path(sys.argv[1])
    rows = list(rows_of((root / "docs/known-faults.md").read_text(encoding="utf-8")))
    faults = [fault for row in rows for fault in faults_of_row(root, *row)]

    seen = collections.Counter(report for _, report, _ in rows)
    faults += [f"{report} has {count} rows" for report, count in seen.items() if count > 1]

    named = {last.strip("`") for section, _, last in rows if section.startswith("tests/reports/")}
    written = {test for path in (root / "tests/reports").glob("*_test.cpp") for test in tests_in(path)}
    faults += [f"{test} is not in docs/known-faults.md" for test in sorted(written - named)]

    for fault in faults:
        print(fault)
    tested = sum(section.startswith("tests/") for section, _, _ in rows)
    print(f"{len(rows)} reports: {tested} tested, {len(rows) - tested} wait for a feature")
    return 1 if faults or not tested else 0


if __name__ == "__main__":
    sys.exit(main())
