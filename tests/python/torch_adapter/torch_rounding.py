"""Contract C8: how far a result may be from fp64, as docs/contract.md says under "How C8 is measured".

Twice the error of standard attention, a unit of the largest element, and what rounding may do to the terms of each
element, whatever cancels: the formula of cases/rounding.cpp in torch's operations.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch_oracle import Terms, heads_outside, scale_of

UNIT = {torch.float32: 1e-6, torch.float16: 1e-5, torch.bfloat16: 1e-5}  # of the type of q
ULP = 2.0**-24  # of fp32
SLOPE_ULPS = 3  # softcap's slope is 1 - t^2 of a rounded t
NOTHING = 1e-30  # near which fp32 exponentials end


class Roundings:
    """What rounding may do to the terms of a problem's results."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, sink: Tensor | None, terms: Terms) -> None:
        self.dtype, self.heads_kv = q.dtype, k.shape[2]
        self.q, self.k, self.v = heads_outside(q.double(), k.double(), v.double())
        self.bias, self.sink = (None if x is None else x.double() for x in (bias, sink))
        self.terms, self.scale = terms, scale_of(q, terms)
        self.unit = UNIT[q.dtype]
        self.keep = torch.ones(()) if terms.keep is None else terms.keep.double()
        self._score()

    def _score(self) -> None:
        """Scores, the slope of softcap, and by how much an exponential may be off, relative to it."""
        scores, self.slope = self.scale * self.q @ self.k.mT, torch.ones(())
        if self.terms.softcap:
            ratio = torch.tanh(scores / self.terms.softcap)
            scores, self.slope = self.terms.softcap * ratio, 1 - ratio**2
        sizes = abs(self.scale) * (self.q.abs() @ self.k.abs().mT) * self.slope
        for added in (self.bias, self.terms.alibi):
            if added is not None:
                scores, sizes = scores + added, sizes + added.abs()
        self.exponent = ULP * (sizes + scores.abs())
        self.scores = scores if self.terms.live is None else scores.masked_fill(~self.terms.live, float("-inf"))

    def of_results(self, out: Tensor, lse: Tensor, dout: Tensor, dlse: Tensor) -> dict[str, Tensor]:
        """By name; out and lse in fp64."""
        dead = lse == float("-inf")
        lse, dlse = lse.masked_fill(dead, 0)[..., None], dlse.masked_fill(dead, 0)[..., None]
        out, dout = out.transpose(1, 2), dout.transpose(1, 2)
        p = (self.scores - lse).exp().masked_fill(dead[..., None], 0)
        sum_off = (p * self.exponent).sum(-1, keepdim=True)
        results = {"out": p * self.keep * (self.unit + self.exponent + sum_off) @ self.v.abs(), "lse": sum_off}

        saved = (dout * out).abs().sum(-1, keepdim=True)  # the sizes of rowsum(dout * out)
        shift = dlse - (dout * out).sum(-1, keepdim=True)
        out_ulp = 0 if self.dtype == torch.float32 else torch.finfo(self.dtype).eps / 4
        shift_off = self.unit * (dlse.abs() + saved) + out_ulp * saved
        p_off = ULP * lse.abs() + self.exponent
        ds = p * (self.keep * (dout @ self.v.mT) + shift)
        ds_off = p * (self.unit * self.keep * (dout.abs() @ self.v.abs().mT) + shift_off) + p_off * ds.abs()
        slope_off = SLOPE_ULPS * ULP * (1 - self.slope)
        dqk_off = (ds_off * self.slope + ds.abs() * slope_off) * abs(self.scale)
        results["dq"] = dqk_off @ self.k.abs()
        results["dk"] = self._of_keys(dqk_off.mT @ self.q.abs())
        results["dv"] = self._of_keys((p * self.keep * (self.unit + p_off)).mT @ dout.abs())
        if self.bias is not None:
            results["dbias"] = ds_off.sum_to_size(self.bias.shape)
        if self.sink is not None:
            of_sink = (self.sink[:, None, None] - lse).exp().masked_fill(dead[..., None], 0)
            results["dsink"] = (of_sink * (shift_off + ULP * (lse * shift).abs())).sum((0, 2, 3))
        return results

    def _of_keys(self, x: Tensor) -> Tensor:
        """Summed over the query heads that share a head of k and v."""
        return x.unflatten(1, (self.heads_kv, -1)).sum(2)


def assert_close(name: str, ours: Tensor, exact: Tensor, standard: Tensor, rounding: Tensor, unit: float) -> None:
    finite = exact.isfinite()
    assert torch.equal(ours[~finite].double(), exact[~finite]), name
    error, yardstick = ((x.double() - exact)[finite].abs().max().item() for x in (ours, standard))
    largest = max(exact[finite].abs().max().item(), 1 if name == "lse" else 0)
    allowed = 2 * yardstick + unit * largest + rounding.max().item() + NOTHING
    assert error <= allowed, f"{name}: error {error:.3g}, allowed {allowed:.3g}, that of standard {yardstick:.3g}"
