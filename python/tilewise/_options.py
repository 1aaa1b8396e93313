"""The keywords that every call takes."""

from __future__ import annotations

from typing import Any, TypeAlias, TypedDict

Array: TypeAlias = Any
"""NumPy's array, or any with `__dlpack__` or `__cuda_array_interface__`."""


class VarlenOptions(TypedDict, total=False):
    """The options of `attention_varlen`: those of `Options` but cu_seqlens_q and cu_seqlens_k, arguments there."""

    softmax_scale: float | None
    softcap: float | None
    bias: Array | None
    alibi_slopes: Array | None
    sink: Array | None

    causal: bool | None
    top_left: bool | None
    window: tuple[int | None, int | None] | None
    window_left: int | None
    window_right: int | None
    attention_chunk: int | None
    mask: Array | None
    mask_tail: bool | None
    key_begin: Array | None
    key_end: Array | None
    q_positions: Array | None
    k_positions: Array | None

    seqused_q: Array | None
    seqused_k: Array | None
    max_seqlen_q: int | None
    max_seqlen_k: int | None
    leftpad_k: Array | None
    batch_index_k: Array | None

    dropout_p: float | None
    dropout_seed: int | None
    dropout_offset: int | None
    dropout_state: Array | None

    prior_out: Array | None
    prior_lse: Array | None

    threads: int | None
    num_splits: int | None
    deterministic: bool | None
    batch_invariant: bool | None

    block_table: Array | None
    q_scale: Array | None
    k_scale: Array | None
    v_scale: Array | None
    scale_per_sequence: bool | None
    v_in_k: bool | None
    sm_margin: int | None


class Options(VarlenOptions, total=False):
    """Every option of a call. One that is left out, or None, has its default; an array without a default is absent.

    B sequences, H query heads, Hk key/value heads, Sq and Sk tokens of a sequence; B|1 and the like: the extent may be
    1, then it repeats, and axes may be missing in front. Packed: all tokens of all sequences in one axis, `total`.
    Row i of a sequence stands at position p = i + Sk - Sq, key j at position j, both in tokens.

    Scores, in this order:
        softmax_scale: float, default 1/sqrt(D). Factor of q @ k.T.
        softcap: float >= 0, default 0 = off. score = softcap * tanh(score / softcap).
        bias: float32, float16 or bfloat16 (B|1,H|1,Sq|1,Sk|1); packed: Sq and Sk of the longest. Added to the scores.
        alibi_slopes: float32 (B|1,H). score -= slope * |p - position of the key|.
        sink: float32 (H). A logit more, in the denominator and in lse; of several parts, give it to one.

    Masks; a key is live for a row if all allow it:
        causal: bool, default False. Keys at positions <= p.
        top_left: bool, default False. p = i, as PyTorch's is_causal has it.
        window: (left, right) in tokens, each >= 0 or None = no limit; default (None, None). Keys at positions from
            p - left to p + right, both included.
        window_left, window_right: int >= 0, in tokens; default no limit. The sides of `window`, one by one.
        attention_chunk: int >= 0, in tokens; default 0 = off. Keys at positions >= p // chunk * chunk.
        mask: bool (B|1,H|1,Sq|1,Sk|1); packed: Sq and Sk of the longest. Keys where it is True.
        mask_tail: bool, default False. `mask` covers the last keys only and leaves earlier ones live.
        key_begin, key_end: int32 (B|1,H|1,Sq), packed (H|1,total). Keys begin <= j < end.
        q_positions, k_positions: int32 (B|1,Sq) and (B|1,Sk), packed (total). p of each row, and of each key in its
            place; those of keys do not descend, and need those of rows.

    Lengths, in tokens:
        cu_seqlens_q, cu_seqlens_k: int32 (B+1). Packed: sequence b is tokens cu_seqlens[b] to cu_seqlens[b+1]; from 0,
            ascending.
        seqused_q, seqused_k: int32 (B), default the slots' lengths. Sq and Sk of each sequence.
        max_seqlen_q, max_seqlen_k: int >= 0, default 0 = what the arrays allow. Upper bounds of Sq and Sk.
        leftpad_k: int32 (B), default 0. The first so many keys are dead; they still count in Sk.
        batch_index_k: int32 (B), default 0 to B - 1. Row of a dense k and v that a sequence reads. Forward only.

    Dropout of probabilities, Philox 4x32-10, the same bits on every machine:
        dropout_p: float, 0 <= p < 1, default 0. Above 0 it needs dropout_seed, dropout_offset or dropout_state, from
            which alone the mask follows; `tilewise.torch` draws a dropout_state.
        dropout_seed: int, 64 bits, default 0.
        dropout_offset: int, 64 bits, default 0. Each call needs a new one; +1 is enough.
        dropout_state: int64 (2). A seed in place of dropout_seed, and an offset that dropout_offset is added to.

    The result over other keys, to be merged into this one; forward only:
        prior_out, prior_lse: float32, like out and lse, and may be these.

    How the call runs:
        threads: int >= 0, default 0 = all cores that the process may use. Tasks to run at once; nothing on a GPU.
        num_splits: int >= 0, default 0 = chosen. Parts of the keys that a GPU works on at once; nothing on a CPU.
        sm_margin: int >= 0, default 0. Multiprocessors of a GPU to leave to others; nothing on a CPU.
        deterministic: bool, default False. Backward: same call, same bits. On the CPU always so.
        batch_invariant: bool, default False. Forward: the bits of a row depend on its own sequence only.

    Fields of the C interface that no kernel serves yet (NotImplementedError names the one):
        block_table: int32 (B,pages). Pages of k and v that each sequence has.
        q_scale, k_scale, v_scale: float32, axes of q, k and v. Factors of 8-bit elements.
        scale_per_sequence: bool, default False. Axis 0 of the scales is the sequence, also if packed or paged.
        v_in_k: bool, default False. v is the first Dv columns of k.
    """

    cu_seqlens_q: Array | None
    cu_seqlens_k: Array | None
