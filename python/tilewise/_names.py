"""Keywords that other libraries have, and what they are here."""

from __future__ import annotations

import difflib

from tilewise import _core

_NO_LIMIT = "with None for no limit where others have -1"
FOREIGN = {
    "attention_mask": "mask (bool, True = live) or bias (numbers that are added)",
    "attn_bias": "bias",
    "attn_mask": "mask (bool, True = live) or bias (numbers that are added)",
    "block_tables": "block_table",
    "cache_batch_idx": "batch_index_k",
    "cache_leftpad": "leftpad_k",
    "cache_seqlens": "seqused_k",
    "cu_seq_lens": "cu_seqlens_q and cu_seqlens_k",
    "cu_seq_lens_k": "cu_seqlens_k",
    "cu_seq_lens_q": "cu_seqlens_q",
    "cu_seqlens": "cu_seqlens_q and cu_seqlens_k",
    "dropout": "dropout_p",
    "dropout_rate": "dropout_p",
    "enable_gqa": "always on: leave it out",
    "generator": "dropout_state=tilewise.torch.dropout_state(generator)",
    "is_causal": "causal, with top_left=True where there are more keys than queries, or fewer",
    "learnable_sink": "sink",
    "logit_soft_cap": "softcap",
    "logits_soft_cap": "softcap",
    "max_length_k": "max_seqlen_k",
    "max_length_q": "max_seqlen_q",
    "num_threads": "threads",
    "p": "dropout_p",
    "page_table": "block_table",
    "return_attn_probs": "return_lse: there are no probabilities to return, their logarithms are scores - lse",
    "return_softmax_lse": "return_lse",
    "s_aux": "sink",
    "scale": "softmax_scale",
    "sinks": "sink",
    "sliding_window": "window_left=sliding_window - 1, with causal=True",
    "sm_scale": "softmax_scale",
    "softmax_temp": "softmax_scale",
    "window_size": f"window=(left, right), {_NO_LIMIT}",
    "window_size_left": f"window_left, {_NO_LIMIT}",
    "window_size_right": f"window_right, {_NO_LIMIT}",
}

_NEAR = 0.75  # of difflib's ratio: a letter or two are wrong
_KEYWORDS = (*_core.keywords, "out", "lse", "return_lse", "out_dtype", "layout")


def unknown_keyword(name: str) -> str:
    """The message for a keyword that does not exist: what it is here, or the nearest that does exist."""
    message = f"attention has no keyword {name!r}"
    if name == "stream":
        return f"{message} in tilewise.torch, which follows torch's current stream: call it under torch.cuda.stream"
    if name in FOREIGN:
        return f"{message}; here it is {FOREIGN[name]}"
    near = [other for other in difflib.get_close_matches(name, _KEYWORDS, cutoff=_NEAR) if other != name]
    return f"{message}; did you mean {near[0]}?" if near else message
