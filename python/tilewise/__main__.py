"""python -m tilewise: the tilewise command, which comes with the package if its build found what the command needs."""

from __future__ import annotations

import os
import pathlib
import sys

COMMAND = pathlib.Path(__file__).parent / "bin" / "tilewise"
MISSING = """tilewise: this package was built without the command, since CLI11, fmt or nlohmann-json was not there.
On Debian: apt-get install libcli11-dev libfmt-dev nlohmann-json3-dev; then install the package again.
From Python everything works: python -c "import tilewise; print(tilewise.info())"
"""


def main() -> int:
    if not COMMAND.exists():
        sys.stderr.write(MISSING)
        return 1
    sys.stdout.flush()
    os.execv(COMMAND, ["tilewise", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
