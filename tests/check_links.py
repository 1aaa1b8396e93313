"""Every relative link in the Markdown files leads to a file of the tree, and its #anchor to a heading there."""

import pathlib
import re
import sys
from collections.abc import Iterator

LINK = re.compile(r"(?<!`)\[[^\]\[`]*(?:`[^`]*`)?[^\]\[]*\]\(([^()\s]+)\)")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ +(.*)", re.MULTILINE)
OTHER_FOLDERS = re.compile(r"build|\.")  # what is built, .git, .venv


def documents(root: pathlib.Path) -> Iterator[pathlib.Path]:
    for path in sorted(root.rglob("*.md")):
        if not OTHER_FOLDERS.match(path.relative_to(root).parts[0]):
            yield path


def text_of(path: pathlib.Path) -> str:
    return FENCED.sub("", path.read_text(encoding="utf-8"))


def anchors_in(path: pathlib.Path) -> set[str]:
    """As GitHub makes them."""
    headings = HEADING.findall(text_of(path))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def fault_of(document: pathlib.Path, link: str) -> str | None:
    name, _, anchor = link.partition("#")
    target = (document.parent / name).resolve() if name else document
    if not target.exists():
        return f"there is no {name}"
    if anchor and anchor not in anchors_in(target):
        return f"{name or 'it'} has no heading {anchor}"
    return None


def main() -> int:
    root = pathlib.Path(sys.argv[1]).resolve()
    checked = 0
    faults = []
    for document in documents(root):
        for link in LINK.findall(text_of(document)):
            if re.match(r"\w+:", link):
                continue
            checked += 1
            if fault := fault_of(document, link):
                faults.append(f"{document.relative_to(root)}: {fault}")
    for fault in faults:
        print(fault)
    print(f"{checked} links checked")
    return 1 if faults or not checked else 0


if __name__ == "__main__":
    sys.exit(main())
