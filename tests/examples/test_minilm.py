"""Sentence similarities on packed sequences against the same model in fp64 with padding and a mask."""

import json
import shutil
import struct
import sys

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
def model():
    return encoder.Encoder(encoder.packaged_model())


@pytest.fixture(scope="module")
def expected():
    oracle = encoder.Encoder(encoder.packaged_model(), np.float64)
    embeddings = oracle.embed_padded(oracle.tokens(SENTENCES), encoder.naive)
    return embeddings @ embeddings.T


def test_packed_similarities_are_those_of_the_oracle(model, expected):
    embeddings = model.embed_packed(model.tokens(SENTENCES))
    assert np.abs(embeddings @ embeddings.T - expected).max() <= 1e-4


def test_padded_similarities_are_those_of_the_oracle(model, expected):
    embeddings = model.embed_padded(model.tokens(SENTENCES), encoder.padded)
    assert np.abs(embeddings @ embeddings.T - expected).max() <= 1e-4


def test_the_same_meaning_is_similar(expected):
    assert expected[0, 1] > 0.7 > 0.2 > expected[0, 2]


def test_command_prints_times(monkeypatch, capsys, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text(" ".join(SENTENCES), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["minilm.py", "--time", str(text)])
    minilm.main()
    assert "| packed, Tilewise |" in capsys.readouterr().out


# ---- Bad files


@pytest.fixture
def folder(tmp_path):
    """A copy of the model's folder that a test may break."""
    return shutil.copytree(encoder.packaged_model(), tmp_path / "model")


def refusal(folder, monkeypatch):
    """What the command says on this folder; a traceback would fail the test."""
    monkeypatch.setattr(sys, "argv", ["minilm.py", "--model", str(folder), "Hello"])
    with pytest.raises(SystemExit) as exit:
        minilm.main()
    message = str(exit.value.code)
    assert message.startswith("error: ") and "\n" not in message
    return message


@pytest.mark.parametrize("length", [0, 7, 1000, 1_000_000, -1])
def test_cut_weights_are_refused(folder, monkeypatch, length):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:length])
    assert str(folder) in refusal(folder, monkeypatch)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_missing_file_is_named(folder, monkeypatch, name):
    (folder / name).unlink()
    assert str(folder) in refusal(folder, monkeypatch)


def change_header(folder, change):
    """Rewrites the JSON header of the weights."""
    weights = folder / "model.safetensors"
    data = weights.read_bytes()
    end = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:end])
    change(header)
    text = json.dumps(header).encode()
    weights.write_bytes(struct.pack("<Q", len(text)) + text + data[end:])


LAST = "encoder.layer.5.output.dense.weight"


def test_missing_tensor_is_named(folder, monkeypatch):
    def rename(header):
        header["other"] = header.pop(LAST)

    change_header(folder, rename)
    assert f"{LAST} is missing" in refusal(folder, monkeypatch)


def test_tensor_of_integers_is_named(folder, monkeypatch):
    change_header(folder, lambda header: header[LAST].update(dtype="I32"))
    assert f"{LAST} is of type int32" in refusal(folder, monkeypatch)


def test_config_without_a_field_is_named(folder, monkeypatch):
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    del config["num_attention_heads"]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert "num_attention_heads" in refusal(folder, monkeypatch)
