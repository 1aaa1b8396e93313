"""The C interface on arrays of any library. `tilewise` is the comfortable form of it; adapters call this one.

An array is NumPy's, or of a type that lends by DLPack's C exchange API (torch 2.10 and newer, 50 ns an array), or has
`__dlpack__` or `__cuda_array_interface__`, or is a view of known memory: a tuple
`(address, dtype, shape, strides[, device])` with `dtype` by name ("float32", "float16", "bfloat16", "bool", "int32",
"int64", "float8_e4m3fn", "int8"), strides in elements, None for row-major, and DLPack's (type, index) of the device,
the CPU if left out. A view's memory is the caller's to keep; all other arrays are kept until the call ends. Nothing
here looks at `requires_grad` or at torch's negative bit.

`options` are those of `tilewise.Options`, in a dict; a value of None counts as absent. `heads_first`:
4-D arrays are (B,H,S,D) instead of (B,S,H,D). `openmp`: the address of the caller's GOMP_parallel, whose threads then
do the work; 0 for the library's own. `threads`: where the options do not say.

On a GPU: `stream` is a cudaStream_t; None for the one that the library of the first array works on at present.
`allocate(q, size)` gives an array of so many bytes for the workspace, which may be reused in the order of the stream
once the call has returned; None for memory of the library's own.
"""

from collections.abc import Callable, Mapping
from typing import Any

version: int
"""major << 16 | minor << 8 | patch."""
keywords: Mapping[str, str]
"""The options, and what each takes: "tensor", "flag", "float", "int", "unsigned" or "window"."""

PLAIN: int
"""Of `look`: all tensors are of the two types, in memory of the CPU or of CUDA, which holds the numbers as they are."""
GRAD: int
"""Of `look`: one requires grad."""
STRIDES: int
"""Of `look`: the last axis of one has another stride than 1."""

def look(tensors: tuple[Any, ...], tensor_type: type, parameter_type: type, /) -> int:
    """PLAIN and the others, or-ed, of PyTorch's tensors that lend by the C exchange API; 0 if they are not plain."""

def eager(
    q: Any,
    k: Any,
    v: Any,
    with_lse: bool,
    heads_first: bool,
    options: Mapping[str, object],
    openmp: int,
    torch: tuple[Any, ...],
    /,
) -> Any:
    """`forward` into new tensors of PyTorch; None, and nothing done, unless they are plain and nothing looks on.

    `torch` is a `tilewise._torch_calls.Torch`.
    """

def forward(
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    out_dtype: str | None,
    heads_first: bool,
    options: Mapping[str, object],
    openmp: int = 0,
    threads: int = 0,
    stream: int | None = None,
    allocate: Callable[[Any, int], Any] | None = None,
    /,
) -> Any:
    """out, or (out, lse) unless `lse` is None. `out` None, `lse` True: new arrays of the library of q."""

def backward(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    dlse: Any,
    gradients: tuple[Any, Any, Any, Any, Any],
    accumulate: bool,
    heads_first: bool,
    options: Mapping[str, object],
    openmp: int = 0,
    threads: int = 0,
    stream: int | None = None,
    allocate: Callable[[Any, int], Any] | None = None,
    /,
) -> tuple[Any, Any, Any, Any, Any]:
    """(dq, dk, dv, dbias, dsink). In `gradients` each of them is an array, True for a new one, None for none."""

def merge(
    out_parts: Any,
    lse_parts: Any,
    out: Any,
    lse: Any,
    out_dtype: str | None,
    heads_first: bool,
    threads: int | None,
    stream: int | None = None,
    /,
) -> tuple[Any, Any]:
    """(out, lse) of parts that are stacked along a leading axis."""

def explain(q: Any, k: Any, v: Any, backward: bool, heads_first: bool, options: Mapping[str, object], /) -> str:
    """JSON, as tw_attention_explain writes it."""

def info() -> str:
    """JSON, as tw_info writes it."""

def traffic(
    q: Any, k: Any, v: Any, backward: bool, heads_first: bool, fast_memory: int, options: Mapping[str, object], /
) -> dict[str, dict[str, int] | None]:
    """By algorithm flops, bytes_read and bytes_written, with `fast_memory` fp32 elements; 0 = a quarter of L2."""
