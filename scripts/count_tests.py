#!/usr/bin/env python3
"""Counts what ctest and pytest ran in the build trees given and prints, last, "N passed, N failed".

A GoogleTest program counts each of its cases, so does pytest, any other test as one. A program that crashed, timed out
or failed outside its cases counts as one failure more. Exits 1 if anything failed or nothing ran.
"""

import json
import pathlib
import sys
from typing import Any
from xml.etree import ElementTree


def skipped_on_purpose(test: ElementTree.Element) -> bool:
    """Not so: a missing program, or a fixture that failed."""
    reason = test.find("skipped")
    return test.get("status") == "disabled" or (reason is not None and reason.get("message", "").startswith("SKIP_"))


class Count:
    def __init__(self) -> None:
        self.passed = self.failed = self.skipped = 0
        self.failures: list[str] = []

    def add_failure(self, name: str) -> None:
        self.failed += 1
        self.failures.append(name)

    def add_case(self, program: str, suite: str, case: dict[str, Any]) -> None:
        if case["status"] == "NOTRUN":  # disabled or filtered out
            return
        if case.get("failures"):
            self.add_failure(f"{program}: {suite}.{case['name']}")
        elif case["result"] == "SKIPPED":
            self.skipped += 1
        else:
            self.passed += 1

    def add_program(self, test: ElementTree.Element, results: pathlib.Path) -> None:
        """test is ctest's testcase element, results the folder in which GoogleTest programs leave theirs."""
        name, status = test.get("name", ""), test.get("status")
        cases = results / f"{name}.json"
        failures_before = self.failed
        if cases.exists():
            for suite in json.loads(cases.read_text(encoding="utf-8"))["testsuites"]:
                for case in suite["testsuite"]:
                    self.add_case(name, suite["name"], case)
        elif status == "run":
            self.passed += 1
        elif skipped_on_purpose(test):
            self.skipped += 1
            return
        if status != "run" and self.failed == failures_before:
            self.add_failure(name)

    def add_python_case(self, case: ElementTree.Element) -> None:
        if case.find("failure") is not None or case.find("error") is not None:
            self.add_failure(f"{case.get('classname')}: {case.get('name')}")
        elif case.find("skipped") is not None:
            self.skipped += 1
        else:
            self.passed += 1

    def add_tree(self, tree: pathlib.Path) -> None:
        results = tree / "test-results"
        reports = sorted(results.glob("ctest*.xml")) + sorted(results.glob("pytest*.xml"))
        if not reports:
            self.add_failure(f"{tree}: no test left a report")
        for report in reports:
            for test in ElementTree.parse(report).getroot().iter("testcase"):
                if report.name.startswith("pytest"):
                    self.add_python_case(test)
                else:
                    self.add_program(test, results)


def main() -> None:
    count = Count()
    for tree in sys.argv[1:]:
        count.add_tree(pathlib.Path(tree))
    if count.failures:
        print("failed:")
        for name in count.failures:
            print(f"  {name}")
    skipped = f", {count.skipped} skipped" if count.skipped else ""
    print(f"{count.passed} passed, {count.failed} failed{skipped}")
    sys.exit(1 if count.failed or not count.passed else 0)


if __name__ == "__main__":
    main()
