"""Byte-level BPE (Radford et al. 2019) with the vocabulary and merges of a GGUF file."""

import functools
import itertools
import re
import sys
import unicodedata

from checkpoint import Checkpoint, ModelError

CONTROL = 3  # the type of tokens that stand for no text, such as <|im_end|>


def letters_of_bytes() -> list[str]:
    """The printable character by which vocabularies write each byte."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = itertools.count(256)
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


@functools.cache
def word_pattern() -> re.Pattern[str]:
    """Words as the model was trained on them: every digit is one, any other starts with at most one space."""
    rare = "".join(filter(lambda c: unicodedata.category(c) in ("Nl", "No"), map(chr, range(sys.maxunicode + 1))))
    digit, letter = rf"\d{rare}", rf"[^\W\d_{rare}]"
    return re.compile(rf"'(?:s|t|re|ve|m|ll|d)| ?{letter}+|[{digit}]| ?(?:[^\w\s]|_)+|\s+(?![^\s{digit}])|\s+")


class Tokenizer:
    def __init__(self, file: Checkpoint) -> None:
        self.tokens = file.strings("tokenizer.ggml.tokens")
        self.ids = {token: i for i, token in enumerate(self.tokens)}
        self.ranks = {tuple(pair.split(" ")): rank for rank, pair in enumerate(file.strings("tokenizer.ggml.merges"))}
        self.unranked = len(self.ranks)
        self.end = file.field("tokenizer.ggml.eos_token_id", int)
        if file.field("tokenizer.ggml.model", str) != "gpt2":
            raise ModelError(f"{file.path}: the tokenizer is not byte-level BPE")

        kinds = file.field("tokenizer.ggml.token_type", list)
        if len(kinds) != len(self.tokens):
            raise ModelError(f"{file.path}: {len(kinds)} types of {len(self.tokens)} tokens")
        control = [token for token, kind in zip(self.tokens, kinds, strict=True) if kind == CONTROL]
        self.control = re.compile(f"({'|'.join(map(re.escape, control))})")
        self.letters = letters_of_bytes()
        self.bytes = {letter: byte for byte, letter in enumerate(self.letters)}
        self.merge = functools.cache(self._merge)

    def _merge(self, word: str) -> list[int]:
        """The pair that was learnt first is merged first, until no two neighbours are a pair."""
        parts = [self.letters[byte] for byte in word.encode()]
        while len(parts) > 1:
            ranks = [self.ranks.get(pair, self.unranked) for pair in itertools.pairwise(parts)]
            first = min(ranks)
            if first == self.unranked:
                break
            i = ranks.index(first)
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        return [self.ids[part] for part in parts]

    def encode(self, text: str) -> list[int]:
        """Raises ValueError for a byte without a token; this vocabulary has none for 21 rare ones."""
        ids = []
        for word in word_pattern().findall(text):
            try:
                ids += self.merge(word)
            except KeyError as error:
                raise ValueError(f"the vocabulary has no token for a byte of {word!r}") from error
        return ids

    def encode_chat(self, text: str) -> list[int]:
        """As encode, but a control token's name stands for that token."""
        pieces = self.control.split(text)  # texts and control tokens in turn
        return [i for n, piece in enumerate(pieces) for i in ([self.ids[piece]] if n % 2 else self.encode(piece))]

    def decode(self, ids: list[int]) -> str:
        text = "".join(self.tokens[i] for i in ids)
        try:
            return bytes(self.bytes[letter] for letter in text).decode(errors="replace")
        except KeyError as error:
            raise ValueError(f"the vocabulary's {text!r} has the letter {error}, which stands for no byte") from error
