"""What pip installs, and what it takes away again."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import shutil
import subprocess
import sys
import venv

import tilewise


def copy_installation(site: pathlib.Path) -> None:
    """Whole folders, so that what pip does not know of comes along."""
    recorded = importlib.metadata.distribution("tilewise").files or []
    home = pathlib.Path(tilewise.__file__).parents[1]
    for folder in {x.parts[0] for x in recorded if x.parts[0] != os.pardir}:
        shutil.copytree(home / folder, site / folder)
    for script in (x for x in recorded if x.parts[0] == os.pardir):
        shutil.copy(home / script, site / script)


def test_uninstall_leaves_nothing(tmp_path: pathlib.Path) -> None:
    venv.create(tmp_path)
    site, python = next(tmp_path.glob("lib/python3*/site-packages")), tmp_path / "bin" / "python"

    def files() -> set[str]:
        return {str(x) for folder in (site, python.parent) for x in folder.rglob("*") if not x.is_dir()}

    before = files()
    copy_installation(site)
    library = "libtilewise_cuda.so.0"  # beside the package where it was built for GPUs
    assert (site / "tilewise" / library).exists() == pathlib.Path(tilewise.__file__).with_name(library).exists()
    subprocess.run([python, "-c", "import tilewise; tilewise.info()"], check=True, timeout=60)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    subprocess.run([*pip, "uninstall", "--yes", "--quiet", "tilewise"], check=True, timeout=120)
    assert files() == before
