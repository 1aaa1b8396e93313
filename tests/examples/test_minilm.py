"""Sentence similarities on packed sequences against the same model in fp64 with padding and a mask."""

from __future__ import annotations

import json
import pathlib
import shutil
import struct
import sys
from collections.abc import Callable
from typing import Any

import encoder
import minilm
import numpy as np
import pytest

SENTENCES = [
    "The cat sleeps on the warm windowsill.",
    "A cat is asleep by the window.",
    "Stocks fell sharply today.",
    "Yes.",
    "",
    "Attention computes, for each query, a weighted mean of values, the weights being a softmax of scaled products of "
    "the query with all keys, so that its cost grows with the square of the length of the sequence.",
    "How do I install a Python package without its dependencies?",
]


@pytest.fixture(scope="module")
def model() -> encoder.Encoder:
    return encoder.Encoder(encoder.packaged_model())


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    oracle = encoder.Encoder(encoder.packaged_model(), np.float64)
    embeddings = oracle.embed_padded(oracle.tokens(SENTENCES), encoder.naive)
    return embeddings @ embeddings.T


def test_packed_similarities_are_those_of_the_oracle(model: encoder.Encoder, expected: np.ndarray) -> None:
    embeddings = model.embed_packed(model.tokens(SENTENCES))
    assert np.abs(embeddings @ embeddings.T - expected).max() <= 1e-4


def test_padded_similarities_are_those_of_the_oracle(model: encoder.Encoder, expected: np.ndarray) -> None:
    embeddings = model.embed_padded(model.tokens(SENTENCES), encoder.padded)
    assert np.abs(embeddings @ embeddings.T - expected).max() <= 1e-4


def test_the_same_meaning_is_similar(expected: np.ndarray) -> None:
    assert expected[0, 1] > 0.7
    assert expected[0, 2] < 0.2


def test_command_prints_times(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    text = tmp_path / "text.txt"
    text.write_text(" ".join(SENTENCES), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["minilm.py", "--time", str(text)])
    minilm.main()
    assert "| packed, Tilewise |" in capsys.readouterr().out


# ---- Bad files


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of the model's folder that a test may break."""
    return shutil.copytree(encoder.packaged_model(), tmp_path / "model")


def refusal(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the command says on this folder; a traceback would fail the test."""
    monkeypatch.setattr(sys, "argv", ["minilm.py", "--model", str(folder), "Hello"])
    with pytest.raises(SystemExit) as exit:
        minilm.main()
    message = str(exit.value.code)
    assert message.startswith("error: ") and "\n" not in message
    return message


@pytest.mark.parametrize("length", [0, 7, 1000, 1_000_000, -1])
def test_cut_weights_are_refused(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:length])
    assert str(folder) in refusal(folder, monkeypatch)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_missing_file_is_named(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (folder / name).unlink()
    assert str(folder) in refusal(folder, monkeypatch)


def change_header(folder: pathlib.Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Rewrites the JSON header of the weights."""
    weights = folder / "model.safetensors"
    data = weights.read_bytes()
    end = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:end])
    change(header)
    text = json.dumps(header).encode()
    weights.write_bytes(struct.pack("<Q", len(text)) + text + data[end:])


LAST = "encoder.layer.5.output.dense.weight"


def test_missing_tensor_is_named(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rename(header: dict[str, Any]) -> None:
        header["other"] = header.pop(LAST)

    change_header(folder, rename)
    assert f"{LAST} is missing" in refusal(folder, monkeypatch)


def test_tensor_of_integers_is_named(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change_header(folder, lambda header: header[LAST].update(dtype="I32"))
    assert f"{LAST} is of type int32" in refusal(folder, monkeypatch)


def test_tensor_of_another_shape_is_named(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change_header(folder, lambda header: header[LAST].update(shape=[384, 1, 1536]))
    assert f"{LAST} has the shape (384, 1, 1536), not (384, 1536)" in refusal(folder, monkeypatch)


def test_weights_that_are_no_numbers_are_named(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-4:] = struct.pack("<f", float("nan"))
    weights.write_bytes(data)
    assert "holds values that are no finite numbers" in refusal(folder, monkeypatch)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_attention_heads", None),
        ("num_attention_heads", "12"),
        ("num_hidden_layers", -1),
        ("num_hidden_layers", True),
        ("max_position_embeddings", 2**70),
        ("hidden_size", 384.0),
    ],
)
def test_config_with_a_wrong_field_is_named(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, field: str, value: object
) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, field: value}), encoding="utf-8")
    assert f"config.json: {field} is {value!r}, not a positive int" in refusal(folder, monkeypatch)


def test_config_of_another_kind_is_refused(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "config.json").write_text("[]", encoding="utf-8")
    assert "num_hidden_layers is None" in refusal(folder, monkeypatch)


def test_token_out_of_the_vocabulary_is_refused(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    tokenizer["model"]["vocab"]["hello"] = 10**6
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    assert "tokenizer.json: a token is none of the 30522" in refusal(folder, monkeypatch)
