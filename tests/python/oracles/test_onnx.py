"""The cases that ONNX ships for its Attention node, opsets 23 to 25, through the C interface.

Y and the present caches are compared; `qk_matmul_output`, the matrix of scores, is not, since this library never
stores it. ONNX rounds after each step to the type of the case; the tolerance, relative to the largest number of an
output, is therefore a few units in the last place of that type.
"""

import contextlib
import functools
import warnings

import c_attention
import c_interface as tw
import numpy as np
import onnx
import pytest
import torch
from onnx.backend.test.case.node import collect_testcases
from onnx.backend.test.case.test_case import TestCase

TOLERANCE = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
NEVER_STORED = "qk_matmul_output"

# As of onnx 1.23. A case that a newer onnx adds runs too; one that has gone is missed.
FEWEST_CASES = 93

# Case: why it is not run. None as yet: all of them can be mapped.
SKIPPED: dict[str, str] = {}


@functools.cache
def cases() -> dict[str, TestCase]:
    """By name; not those that spell the node out in simpler ones, which repeat the same numbers."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(None):
        warnings.simplefilter("ignore", RuntimeWarning)  # of other operators, which collecting makes too
        collected = collect_testcases("Attention")
    return {case.name: case for case in collected if [node.op_type for node in case.model.graph.node] == ["Attention"]}


def to_torch(x: np.ndarray) -> torch.Tensor:
    """Without a copy; NumPy has no bfloat16 of its own."""
    if x.dtype.name == "bfloat16":
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)


class Node:
    """One case: attributes, and inputs and expected outputs by name."""

    def __init__(self, case: TestCase) -> None:
        node = case.model.graph.node[0]
        self.attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        inputs, outputs = case.data_sets[0]
        self.inputs = {name: to_torch(x) for name, x in zip(filter(None, node.input), inputs, strict=True)}
        self.outputs = {name: to_torch(x) for name, x in zip(filter(None, node.output), outputs, strict=True)}

    def split(self, name: str, heads: str) -> torch.Tensor:
        """(B,S,heads,.) of an input that is (B,heads,S,.) or (B,S,heads*.)."""
        x = self.inputs[name]
        return x.transpose(1, 2) if x.dim() == 4 else x.unflatten(2, (self.attributes[heads], -1))

    def with_past(self, name: str, past: str) -> torch.Tensor:
        """(B,past+S,Hk,.); the past is (B,Hk,past,.)."""
        x = self.split(name, "kv_num_heads")
        return torch.cat([self.inputs[past], x.transpose(1, 2)], 2).transpose(1, 2) if past in self.inputs else x

    def mask(self, keys: int) -> torch.Tensor | None:
        """Four axes, the first ones 1 where it has fewer; keys that it does not reach are dead."""
        x = self.inputs.get("attn_mask")
        if x is None:
            return None
        x = x[(None,) * (4 - x.dim())]
        dead = False if x.dtype == torch.bool else float("-inf")
        return torch.nn.functional.pad(x, (0, keys - x.shape[-1]), value=dead) if x.shape[-1] < keys else x

    def problem(self) -> c_attention.Problem:
        q = self.split("Q", "q_num_heads")
        k, v = self.with_past("K", "past_key"), self.with_past("V", "past_value")
        p = c_attention.Problem(q, k, v)
        p.scale, p.softcap = self.attributes.get("scale"), self.attributes.get("softcap", 0.0)
        mask = self.mask(k.shape[1])
        if mask is not None:
            setattr(p, "mask" if mask.dtype == torch.bool else "bias", mask)
        for side in ("left", "right"):
            width = self.attributes.get(f"{side}_window_size", -1)
            if width >= 0:
                setattr(p, f"window_{side}", width)
        if self.attributes.get("is_causal"):
            p.flags |= tw.CAUSAL
        self.place_rows(p)
        return p

    def place_rows(self, p: c_attention.Problem) -> None:
        """Row i stands at past + i; at nonpad_kv_seqlen - Sq + i, as is the rule here; or else at i."""
        if "nonpad_kv_seqlen" in self.inputs:
            p.seqused_k = self.inputs["nonpad_kv_seqlen"].to(torch.int32)
        elif "past_key" in self.inputs:
            past = self.inputs["past_key"].shape[2]
            p.q_positions = torch.arange(past, past + p.q.shape[1], dtype=torch.int32)[None]
        else:
            p.flags |= c_attention.TOP_LEFT

    def results(self, library: tw.Library) -> dict[str, torch.Tensor]:
        p = self.problem()
        out, _ = c_attention.forward(library, p)
        y = out.transpose(1, 2) if self.inputs["Q"].dim() == 4 else out.flatten(2)
        return {"Y": y, "present_key": p.k.transpose(1, 2), "present_value": p.v.transpose(1, 2)}


@pytest.mark.parametrize("name", sorted(cases()))
def test_case(library: tw.Library, name: str) -> None:
    if name in SKIPPED:
        pytest.skip(SKIPPED[name])
    node = Node(cases()[name])
    results = node.results(library)
    assert "Y" in node.outputs
    for output, want in node.outputs.items():
        if output == NEVER_STORED:
            continue
        got = results[output]
        assert got.shape == want.shape and got.dtype == want.dtype, output
        tolerance = TOLERANCE[want.dtype] * want.abs().max().item() if output == "Y" else 0
        difference = (got.double() - want.double()).abs().max().item()
        assert difference <= tolerance, f"{output}: {difference} from ONNX's, allowed {tolerance}"


def test_cases_are_all_there() -> None:
    assert len(cases()) >= FEWEST_CASES
    assert set(SKIPPED) <= set(cases())
