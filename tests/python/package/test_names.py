"""The options of a call stand in several lists; all have the same names."""

from __future__ import annotations

import inspect
import pathlib
import re

import pytest
import tilewise
from tilewise import _core, _names

HEADER = pathlib.Path(__file__).parents[3] / "include" / "tilewise" / "tilewise.h"

# Arguments and results of the functions, which are no options.
ARGUMENTS = {
    "struct_size", "flags", "device_type", "device_index", "reserved", "reserved1", "q", "k", "v", "out", "lse",
}  # fmt: skip


def names_of_kind(kind: str) -> set[str]:
    return {name for name, of_kind in _core.keywords.items() if of_kind == kind}


def test_options_are_the_keywords() -> None:
    assert set(tilewise.Options.__annotations__) == set(_core.keywords)


@pytest.mark.parametrize("name", sorted(_core.keywords))
def test_help_tells_what_each_option_is(name: str) -> None:
    entry = re.search(rf"^    (\w+, )*{name}(, \w+)*: (.*)", str(inspect.getdoc(tilewise.Options)), re.MULTILINE)
    assert entry
    assert re.search(r"default|\w \(|, axes of|, like", entry[3]), "its type, and its default or shape"


def test_keywords_are_the_fields_of_the_c_struct() -> None:
    found = re.search(r"typedef struct tw_attention \{(.*?)\} tw_attention;", HEADER.read_text(encoding="utf-8"), re.S)
    assert found
    fields = re.findall(r"^  (\w+) (\w+);", found[1], re.MULTILINE)
    tensors = {name for kind, name in fields if kind == "tw_tensor"}
    numbers = {name for kind, name in fields if kind != "tw_tensor"}
    assert tensors - ARGUMENTS == names_of_kind("tensor")
    assert numbers - ARGUMENTS == names_of_kind("float") | names_of_kind("int") | names_of_kind("unsigned")


def test_flags_are_those_of_the_c_interface() -> None:
    names = re.findall(r"^  TW_(\w+) = 1 << ", HEADER.read_text(encoding="utf-8"), re.MULTILINE)
    with_a_number = {"softmax_scale", "window_left", "window_right"}
    assert {name.lower() for name in names} - with_a_number == names_of_kind("flag")


@pytest.mark.parametrize("name", sorted(_names.FOREIGN))
def test_foreign_keywords_lead_to_ones_of_here(name: str) -> None:
    arguments = set(inspect.signature(tilewise.attention).parameters) | set(_core.keywords)
    assert name not in arguments
    named = re.findall(r"\w+", _names.FOREIGN[name])
    assert arguments & set(named) or "leave it out" in _names.FOREIGN[name]
