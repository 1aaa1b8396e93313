"""The language model: a Llama-like decoder over NumPy arrays that takes its attention as an argument."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from attention import Attention
from checkpoint import Checkpoint, ModelError

BLOCK_ROWS = 256  # whose hidden channels and logits are in memory at once: 1.5 and 50 MB in fp32


def blocks(x: np.ndarray) -> Iterator[np.ndarray]:
    """Views of x, BLOCK_ROWS rows each."""
    return (x[start : start + BLOCK_ROWS] for start in range(0, len(x), BLOCK_ROWS))


class Layer(NamedTuple):
    """Weights, (outputs, inputs) each."""

    attn_norm: np.ndarray
    attn_q: np.ndarray
    attn_k: np.ndarray
    attn_v: np.ndarray
    attn_output: np.ndarray
    ffn_norm: np.ndarray
    ffn_gate: np.ndarray
    ffn_up: np.ndarray
    ffn_down: np.ndarray


class Cache(NamedTuple):
    """Keys and values of all layers, (layers, capacity, kv_heads, head_dim) each."""

    keys: np.ndarray
    values: np.ndarray


class Model:
    def __init__(self, file: Checkpoint, attention: Attention, dtype: type = np.float32) -> None:
        if file.field("general.architecture", str) != "llama":
            raise ModelError(f"{file.path}: the architecture is not llama")
        self.attention = attention
        self.dtype = dtype
        self.context = file.size("llama.context_length")
        self.heads = file.size("llama.attention.head_count")
        self.kv_heads = file.size("llama.attention.head_count_kv")
        self.head_dim = file.size("llama.rope.dimension_count")
        self.rope_base = file.number("llama.rope.freq_base")
        self.norm_epsilon = file.number("llama.attention.layer_norm_rms_epsilon")

        channels, hidden = file.size("llama.embedding_length"), file.size("llama.feed_forward_length")
        q_width, kv_width = self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes = {
            "attn_norm": (channels,),
            "attn_q": (q_width, channels),
            "attn_k": (kv_width, channels),
            "attn_v": (kv_width, channels),
            "attn_output": (channels, q_width),
            "ffn_norm": (channels,),
            "ffn_gate": (hidden, channels),
            "ffn_up": (hidden, channels),
            "ffn_down": (channels, hidden),
        }
        self.layers = [
            Layer(**{name: file.tensor(f"blk.{i}.{name}.weight", shape, dtype) for name, shape in shapes.items()})
            for i in range(file.size("llama.block_count"))
        ]
        vocabulary = len(file.strings("tokenizer.ggml.tokens"))
        self.embedding = file.tensor("token_embd.weight", (vocabulary, channels), dtype)
        self.output_norm = file.tensor("output_norm.weight", (channels,), dtype)

    def cache(self, capacity: int) -> Cache:
        shape = (len(self.layers), capacity, self.kv_heads, self.head_dim)
        return Cache(np.zeros(shape, self.dtype), np.zeros(shape, self.dtype))

    def norm(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.dtype(self.norm_epsilon)) * weight

    def turns(self, first: int, end: int) -> np.ndarray:
        """(tokens, 1, head_dim / 2): by how much each pair of channels turns at each position, as complex numbers."""
        frequency = self.rope_base ** (-np.arange(0, self.head_dim, 2) / self.head_dim)
        angle = np.arange(first, end)[:, None, None] * frequency
        return np.exp(1j * angle).astype(np.result_type(self.dtype, np.complex64))

    def split(self, x: np.ndarray) -> np.ndarray:
        """(tokens, channels) to (tokens, heads, head_dim)"""
        return x.reshape(len(x), -1, self.head_dim)

    def rotate(self, x: np.ndarray, turns: np.ndarray) -> np.ndarray:
        """GGUF has the two channels that turn together side by side."""
        return (x.view(turns.dtype) * turns).view(x.dtype)

    def feed_forward(self, x: np.ndarray, layer: Layer) -> np.ndarray:
        y = self.norm(x, layer.ffn_norm)
        gate = y @ layer.ffn_gate.T
        gate /= 1 + np.exp(-gate)
        return (gate * (y @ layer.ffn_up.T)) @ layer.ffn_down.T

    def hidden(self, ids: Sequence[int], cache: Cache, first: int = 0) -> np.ndarray:
        """(tokens, channels) at the end. ids stand at positions first, first + 1, ..; the cache takes them."""
        end = first + len(ids)
        turns = self.turns(first, end)
        x = self.embedding[ids]
        for layer, keys, values in zip(self.layers, cache.keys, cache.values, strict=True):
            y = self.norm(x, layer.attn_norm)
            q = self.rotate(self.split(y @ layer.attn_q.T), turns)
            keys[first:end] = self.rotate(self.split(y @ layer.attn_k.T), turns)
            values[first:end] = self.split(y @ layer.attn_v.T)
            x += self.attention(q, keys[:end], values[:end]).reshape(len(x), -1) @ layer.attn_output.T
            for block in blocks(x):
                np.add(block, self.feed_forward(block, layer), out=block)
        return self.norm(x, self.output_norm)

    def generate(self, ids: Sequence[int], count: int) -> Iterator[int]:
        """The count tokens that follow, the likeliest each."""
        cache, first = self.cache(len(ids) + count), 0
        for _ in range(count):
            x = self.hidden(ids, cache, first)
            first += len(ids)
            ids = [int(np.argmax(self.embedding @ x[-1]))]
            yield ids[0]

    def perplexity(self, ids: Sequence[int]) -> float:
        """exp of the mean loss of every token but the first."""
        x = self.hidden(ids[:-1], self.cache(len(ids)))
        loss = 0.0
        for rows, tokens in zip(blocks(x), blocks(np.asarray(ids[1:])), strict=True):
            logits = rows @ self.embedding.T
            logits -= logits.max(axis=1, keepdims=True)
            log_sum = np.log(np.exp(logits).sum(axis=1, dtype=np.float64))
            loss += float(np.sum(log_sum - logits[np.arange(len(tokens)), tokens]))
        return float(np.exp(loss / len(x)))
