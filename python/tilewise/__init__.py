"""Exact attention, tile by tile: `softmax(softmax_scale * q @ k.T, masked) @ v` without ever storing the scores.

Arrays are NumPy's (bfloat16 by ml_dtypes), any with `__dlpack__` on a CPU or an NVIDIA GPU, or any with
`__cuda_array_interface__`; strided ones are read in place, and results come back as arrays of the library of q.

    out = tilewise.attention(q, k, v, causal=True)

The algorithm is that of FlashAttention-2 (Dao 2023, section 3.1).

Errors, with the C library's message, which names the argument, its value and the rule:
    ValueError           an argument breaks a rule
    TypeError            an object is no array, or its element type is unknown
    NotImplementedError  legal, but served by no kernel here: paged caches, 8-bit types
    MemoryError          no memory for the workspace or a result
    RuntimeError         no GPU, driver or CUDA back end to serve arrays on a GPU, or a launch that failed
"""

from __future__ import annotations

from tilewise import _core
from tilewise._attention import (
    Gradients,
    attention,
    attention_backward,
    attention_partial,
    attention_varlen,
    merge,
)
from tilewise._options import Array, Options, VarlenOptions
from tilewise._questions import explain, info, traffic, without_memory

__version__ = ".".join(str(_core.version >> shift & 0xFF) for shift in (16, 8, 0))

__all__ = [
    "Array",
    "Gradients",
    "Options",
    "VarlenOptions",
    "__version__",
    "attention",
    "attention_backward",
    "attention_partial",
    "attention_varlen",
    "explain",
    "info",
    "merge",
    "traffic",
    "without_memory",
]
