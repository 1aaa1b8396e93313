"""The keywords that every call takes."""

from __future__ import annotations

from typing import Any, TypeAlias, TypedDict

Array: TypeAlias = Any
"""NumPy's array, or any CPU array with `__dlpack__`."""


class VarlenOptions(TypedDict, total=False):
    """The options of `attention_varlen`; those left out, or None, are off.

    B sequences, H query heads, Hk key/value heads, Sq, Sk lengths; x|1: the extent may be 1, then it repeats. Row i of
    a sequence stands at position p = i + Sk - Sq, key j at j. A key is live if all masks allow it.
    """

    softmax_scale: float | None
    """Factor of the scores; 1/sqrt(D) if left out."""
    causal: bool
    """Keys at positions <= p are live."""
    top_left: bool
    """Row i stands at position i, as PyTorch's is_causal has it."""
    window: tuple[int | None, int | None] | None
    """(left, right): keys p - left <= j <= p + right are live, both ends included; None = no limit on that side."""
    window_left: int | None
    window_right: int | None
    """The sides of `window`, one by one."""
    attention_chunk: int | None
    """c: keys at positions >= floor(p/c)*c are live."""
    mask: Array | None
    """bool (B|1,H|1,Sq|1,Sk|1), True = live; axes missing in front count as 1. Packed: Sq, Sk of the longest."""
    mask_tail: bool
    """`mask` covers the last keys only and leaves earlier ones live."""
    key_begin: Array | None
    key_end: Array | None
    """int32 (B|1,H|1,Sq), packed (H|1,total): keys begin <= j < end are live."""
    q_positions: Array | None
    k_positions: Array | None
    """int32 (B|1,Sq), (B|1,Sk), packed (total): p of each row, and of each key, which do not descend."""
    bias: Array | None
    """float32, float16 or bfloat16 (B|1,H|1,Sq|1,Sk|1), added to the scores."""
    alibi_slopes: Array | None
    """float32 (H) or (B|1,H): adds -slope * |p - position of the key|."""
    softcap: float | None
    """c: scores become c * tanh(score / c)."""
    sink: Array | None
    """float32 (H): one more logit in the denominator and in lse."""
    dropout_p: float | None
    """0 <= p < 1, of the probabilities; Philox 4x32-10, the same bits on every machine."""
    dropout_seed: int | None
    dropout_offset: int | None
    """Each call needs a new offset; +1 is enough."""
    dropout_state: Array | None
    """int64 (2): seed, and an offset that dropout_offset is added to; in place of dropout_seed."""
    seqused_q: Array | None
    seqused_k: Array | None
    """int32 (B): length of a sequence where it is less than its slot."""
    max_seqlen_q: int | None
    max_seqlen_k: int | None
    """Upper bounds of the lengths."""
    leftpad_k: Array | None
    """int32 (B): the first so many keys are dead; they still count in Sk."""
    batch_index_k: Array | None
    """int32 (B): row of a dense k, v that a sequence reads. Forward only."""
    prior_out: Array | None
    prior_lse: Array | None
    """float32, like out and lse: the result over other keys, to be merged into this one. May be out and lse."""
    threads: int | None
    """Tasks to run at once; 0 = all cores that the process may use."""
    num_splits: int | None
    """Parts of the keys worked on at once; 0 = chosen."""
    deterministic: bool
    """Backward: same call, same bits. Forward always is."""
    batch_invariant: bool
    """Forward: the bits of a row depend on its own sequence only."""
    block_table: Array | None
    q_scale: Array | None
    k_scale: Array | None
    v_scale: Array | None
    scale_per_sequence: bool
    v_in_k: bool
    sm_margin: int | None
    """Fields of the C interface that a call may refuse: NotImplementedError names the one."""


class Options(VarlenOptions, total=False):
    """Every option of a call: those of `VarlenOptions`, and the offsets of packed sequences."""

    cu_seqlens_q: Array | None
    cu_seqlens_k: Array | None
    """int32 (B+1): sequence b is rows cu_seqlens[b] to cu_seqlens[b+1]; from 0, ascending."""
