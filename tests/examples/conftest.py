"""Makes the examples' modules importable, as they are when their scripts run."""

import os
import pathlib
import sys

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # more of them spin while they wait, which stalls a busy machine

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
sys.path[:0] = [str(EXAMPLES / "smollm2"), str(EXAMPLES / "minilm")]
