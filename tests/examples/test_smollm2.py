"""SmolLM2 with Tilewise against the same model in fp64 with naive attention; and model files that are broken."""

from __future__ import annotations

import copy
import pathlib
import random
import struct
import subprocess
import sys
from collections.abc import Iterator

import attention
import checkpoint
import measure
import numpy as np
import pytest
import smollm2
import tokenizers
from model import Model
from tokenizer import Tokenizer

TEXT = pathlib.Path(__file__).resolve().parents[2] / "data" / "alice.txt"
PROMPTS = [
    "Why is the sky blue?",
    "Write a short story about a lighthouse keeper and a whale.",
    "Explain how a hash table works, with an example in Python.",
    "What is 17 times 23? Think step by step.",
    "List five facts about the history of Antarctica.",
]
GGUF_F32, TENSOR_I32 = 6, 26  # numbers of types


@pytest.fixture(scope="module")
def file() -> checkpoint.Checkpoint:
    return checkpoint.Checkpoint(checkpoint.packaged_model())


@pytest.fixture(scope="module")
def tokenizer(file: checkpoint.Checkpoint) -> Tokenizer:
    return Tokenizer(file)


@pytest.fixture(scope="module")
def model(file: checkpoint.Checkpoint) -> Model:
    return Model(file, attention.tiled)


@pytest.fixture(scope="module")
def oracle(file: checkpoint.Checkpoint) -> Model:
    return Model(file, attention.naive, np.float64)


# ---- The tokenizer


@pytest.fixture(scope="module")
def peer(file: checkpoint.Checkpoint) -> tokenizers.Tokenizer:
    """PyPI's tokenizers with the same vocabulary."""
    merges = [tuple(merge.split(" ")) for merge in file.strings("tokenizer.ggml.merges")]
    tokens = file.strings("tokenizer.ggml.tokens")
    peer = tokenizers.Tokenizer(tokenizers.models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    digits = tokenizers.pre_tokenizers.Digits(individual_digits=True)
    words = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    peer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([digits, words])
    return peer


def random_texts(count: int) -> Iterator[str]:
    alphabets = [
        "abcXYZ '\n\t  012½²Ⅷ_é.,!?-",
        "'s't're'vell'll 'd \u3000\u00a0 \r\n",
        "日本語一二三 русский नमस्ते ١٢٣ ü̈ 🙂",
        "".join(map(chr, range(32, 0x3000))),
    ]
    random_numbers = random.Random(1)
    for _ in range(count):
        alphabet = random_numbers.choice(alphabets)
        yield "".join(random_numbers.choices(alphabet, k=random_numbers.randrange(30)))


def test_tokenizer_equals_its_peer_and_gives_texts_back(tokenizer: Tokenizer, peer: tokenizers.Tokenizer) -> None:
    for text in [TEXT.read_text(encoding="utf-8"), *random_texts(3000)]:
        ids = tokenizer.encode(text)
        assert ids == peer.encode(text).ids
        assert tokenizer.decode(ids) == text


def test_control_tokens_are_read_in_chats_alone(tokenizer: Tokenizer) -> None:
    assert tokenizer.end in tokenizer.encode_chat("a<|im_end|>")
    assert tokenizer.end not in tokenizer.encode("a<|im_end|>")


def test_byte_without_a_token_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match="no token for a byte"):
        tokenizer.encode("a\x04")


# ---- The model


@pytest.mark.parametrize("prompt", PROMPTS)
def test_64_greedy_tokens_are_those_of_the_oracle(
    model: Model, oracle: Model, tokenizer: Tokenizer, prompt: str
) -> None:
    ids = tokenizer.encode_chat(smollm2.CHAT.format(prompt))
    assert list(model.generate(ids, 64)) == list(oracle.generate(ids, 64))


def test_perplexity_is_that_of_the_oracle(model: Model, oracle: Model, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXT.read_text(encoding="utf-8"))[:768]
    expected = oracle.perplexity(ids)
    assert model.perplexity(ids) == pytest.approx(expected, abs=1e-4)
    assert expected < 30  # a wrong rotation, head order or tokenizer gives hundreds


def test_measure_counts_time_and_memory(model: Model, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXT.read_text(encoding="utf-8"))[:1536]  # whose scores outgrow all else
    tiled, naive = (measure.prefill(model, ids, attend) for attend in (attention.tiled, attention.naive))
    assert 0 < tiled.attention < tiled.total
    assert naive.peak_bytes > tiled.peak_bytes


# ---- Bad files


@pytest.fixture(scope="module")
def good_bytes() -> bytes:
    return checkpoint.packaged_model().read_bytes()


def refusal(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the command says on this model file; a traceback would fail the test."""
    monkeypatch.setattr(sys, "argv", ["smollm2.py", "--model", str(path), "Hello"])
    with pytest.raises(SystemExit) as exit:
        smollm2.main()
    message = str(exit.value.code)
    assert message.startswith(f"error: {path}: ") and "\n" not in message
    return message


@pytest.mark.parametrize("length", [0, 3, 10, 24, 500, 100_000, 1_000_000, 1_777_000, 5_000_000, -1])
def test_cut_file_is_refused(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, good_bytes: bytes, length: int
) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(good_bytes[:length])
    refusal(path, monkeypatch)


def gguf_string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def changed(data: bytes, name: str, offset: int, new: bytes) -> bytes:
    """The bytes after the string called name, from offset on, replaced by new."""
    start = data.index(gguf_string(name)) + len(gguf_string(name)) + offset
    return data[:start] + new + data[start + len(new) :]


def test_missing_tensor_is_named(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, good_bytes: bytes) -> None:
    path = tmp_path / "missing.gguf"
    path.write_bytes(changed(good_bytes, "blk.7.ffn_up.weight", -1, b"x"))
    assert "blk.7.ffn_up.weight is missing" in refusal(path, monkeypatch)


def test_tensor_of_integers_is_named(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, good_bytes: bytes
) -> None:
    path = tmp_path / "type.gguf"
    path.write_bytes(changed(good_bytes, "output_norm.weight", 4 + 8, struct.pack("<I", TENSOR_I32)))
    assert "output_norm.weight is of type I32" in refusal(path, monkeypatch)


def test_tensor_of_another_shape_is_named(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, good_bytes: bytes
) -> None:
    path = tmp_path / "shape.gguf"
    path.write_bytes(changed(good_bytes, "output_norm.weight", 4, struct.pack("<Q", 544)))
    assert "output_norm.weight has the shape (544,), not (576,)" in refusal(path, monkeypatch)


def test_field_of_another_type_is_named(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, good_bytes: bytes
) -> None:
    path = tmp_path / "field.gguf"
    path.write_bytes(changed(good_bytes, "llama.attention.head_count", 0, struct.pack("<I", GGUF_F32)))
    assert "llama.attention.head_count is of type float, not int" in refusal(path, monkeypatch)


@pytest.mark.parametrize(
    ("field", "value"), [("llama.rope.freq_base", 0.0), ("llama.attention.layer_norm_rms_epsilon", float("nan"))]
)
def test_field_out_of_range_is_named(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, good_bytes: bytes, field: str, value: int
) -> None:
    path = tmp_path / "range.gguf"
    path.write_bytes(changed(good_bytes, field, 4, struct.pack("<f", value)))
    assert f"the field {field} is {value}, not a positive number" in refusal(path, monkeypatch)


def test_types_of_other_tokens_are_refused(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, good_bytes: bytes
) -> None:
    path = tmp_path / "types.gguf"
    name = gguf_string("tokenizer.ggml.token_type")
    count_at = good_bytes.index(name) + len(name) + 8  # after the types of the field and of its elements
    count = struct.unpack_from("<Q", good_bytes, count_at)[0]
    without_eight = struct.pack("<Q", count - 8) + good_bytes[count_at + 8 + 8 * 4 :]
    path.write_bytes(good_bytes[:count_at] + without_eight)
    assert f"{count - 8} types of {count} tokens" in refusal(path, monkeypatch)


def test_huge_count_is_refused_at_once(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, good_bytes: bytes
) -> None:
    path = tmp_path / "count.gguf"
    path.write_bytes(changed(good_bytes, "tokenizer.ggml.token_type", 8, struct.pack("<Q", 2**40)))
    assert f"an array of {2**40} elements" in refusal(path, monkeypatch)


def test_letter_that_stands_for_no_byte_is_named(tokenizer: Tokenizer) -> None:
    broken = copy.copy(tokenizer)
    broken.tokens = ["日", *tokenizer.tokens[1:]]
    with pytest.raises(ValueError, match="'日' has the letter '日'"):
        broken.decode([0])


def test_command_ends_with_one_line_and_a_code(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "none.gguf"
    command = [sys.executable, smollm2.__file__, "--model", str(path), "Hello"]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == f"error: {path}: No such file or directory\n"
