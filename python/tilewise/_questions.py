"""What a call would do, and what this machine and build have."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tilewise import _core
from tilewise._attention import Layout, dtype_name, heads_first
from tilewise._gpu_arrays import dlpack_device
from tilewise._options import Array, Options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Unpack


def without_memory(shape: Sequence[int], dtype: Any = "float32", device: Any = "cpu") -> Array:
    """An array that is only described, for `explain` and `traffic`; device: "cpu", "cuda" or "cuda:1"."""
    return (0, dtype_name(dtype), tuple(shape), None, dlpack_device(device))


def explain(
    q: Array, k: Array, v: Array, *, backward: bool = False, layout: Layout = "bshd", **options: Unpack[Options]
) -> dict[str, Any]:
    """How a call would run; or {"error": {"code", "name", "message"}}.

    Args:
        q, k, v and the options: as in `attention`; arrays may come from `without_memory`, lengths and masks then count
            as full.
        backward: the call is the backward with dq, dk and dv.

    Returns:
        kernel, pass: the kernel's name; "forward" or "backward".
        query_rows, keys: rows and keys of a tile.
        chunk_keys: keys whose dk and dv a task of the backward makes; 0 forward.
        splits: parts of the keys worked on at once; 0 on a CPU.
        workers: tasks at once; on a GPU, multiprocessors.
        workspace_bytes: memory besides the arrays.
        flops, bytes: by the model of `traffic`; roofline_ms: the longer of the two at this CPU's peak and at 20 GB/s.
            None for a problem too large to count.
        refused: a list of {"kernel", "reason"}: why each better kernel, one before this in `info()`, was not taken.
    """
    answer: dict[str, Any] = json.loads(_core.explain(q, k, v, backward, heads_first(layout), options))
    return answer


def info() -> dict[str, Any]:
    """Version, the CPU, all kernels with why one is not available, and the back ends."""
    answer: dict[str, Any] = json.loads(_core.info())
    return answer


def traffic(
    q: Array,
    k: Array,
    v: Array,
    *,
    fast_memory: int | None = None,
    backward: bool = False,
    layout: Layout = "bshd",
    **options: Unpack[Options],
) -> dict[str, dict[str, int] | None]:
    """FLOPs, and bytes between slow and fast memory, of standard attention, FlashAttention-1 ("v1") and
    FlashAttention-2 order ("v2"), lse included: flops, bytes_read and bytes_written of each; None for a problem too
    large to count.

    fast_memory: its size in fp32 elements; a quarter of the L2 cache's bytes if left out, as in `tilewise traffic`.

    Source: the IO model of Dao et al. 2022, FlashAttention, section 3.2.
    """
    return _core.traffic(q, k, v, backward, heads_first(layout), 0 if fast_memory is None else fast_memory, options)
