"""PyTorch's scaled_dot_product_attention as a second oracle: 2,000 random problems, a quarter with gradients.

The truth is its math back end in fp64, the yardstick what it chooses for the same tensors in their own type. Our error
may be twice that of the yardstick and a few roundings (contract C8, and "How C8 is measured" in docs/contract.md).
A row without a live key gives 0 there as here (PyTorch before 2.5 gave NaN), so no row is left out.
"""

import contextlib
import dataclasses
import random

import c_attention
import c_interface as tw
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

PROBLEMS = 2000
GRADIENTS_EVERY = 4
UNIT = {torch.float32: 1e-6, torch.float16: 1e-5, torch.bfloat16: 1e-5}
SCORES = 2.0**-24  # what a score in fp32 is off by, relative to the sizes of its terms


@dataclasses.dataclass
class Drawn:
    """q (B,H,Sq,D), k (B,Hk,Sk,D), v (B,Hk,Sk,Dv), in any layout. `live` and `added` broadcast to (B,H,Sq,Sk)."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    dout: torch.Tensor
    scale: float | None = None
    live: torch.Tensor | None = None  # bool
    added: torch.Tensor | None = None  # in the type of q
    flags: int = 0  # where the mask is structured, `live` says the same
    window_left: int | None = None

    def c_problem(self) -> c_attention.Problem:
        structured = self.flags or self.window_left is not None
        return c_attention.Problem(
            *(x.transpose(1, 2) for x in (self.q, self.k, self.v)),
            flags=self.flags,
            scale=self.scale,
            window_left=self.window_left,
            mask=None if structured else self.live,
            bias=self.added,
        )


class Draw(random.Random):
    """Random parts of a problem; torch's own numbers follow from the same seed."""

    def size(self, most: int) -> int:
        """Small ones are as likely as large ones."""
        return min(most, int(2 ** self.uniform(0, (most + 1).bit_length() - 1 + 0.1)))

    def tensor(self, batch: int, heads: int, length: int, dim: int, dtype: torch.dtype) -> torch.Tensor:
        """A (B,H,S,D) view of memory with its axes in any order, and with gaps between rows now and then."""
        order = self.sample(range(3), 3)
        before, after = self.choice([(0, 0), (0, 0), (1, 2), (0, 5), (3, 0)])
        sizes = [(batch, heads, length)[axis] for axis in order]
        memory = torch.randn(*sizes, before + dim + after).to(dtype)
        back = [order.index(axis) for axis in range(3)]
        return memory[..., before : before + dim].permute(*back, 3)

    def mask_shape(self, q: torch.Tensor, k: torch.Tensor) -> list[int]:
        sizes = [q.shape[0], q.shape[1], q.shape[2], k.shape[2]]
        return [size if self.random() < 0.7 else 1 for size in sizes]


def add_mask(draw: Draw, p: Drawn) -> None:
    rows, keys = p.q.shape[2], p.k.shape[2]
    back = torch.arange(rows)[:, None] + keys - rows - torch.arange(keys)  # from the row's position to the key's
    kind = draw.choice(["none", "bool", "float", "is_causal", "last row at the last key", "window"])
    if kind == "bool":
        p.live = torch.rand(draw.mask_shape(p.q, p.k)) < draw.choice([0.1, 0.5, 0.9])
    elif kind == "float":
        shape = draw.mask_shape(p.q, p.k)
        dead = torch.rand(shape) < draw.choice([0, 0.3])
        p.added = torch.randn(shape).masked_fill(dead, float("-inf")).to(p.q.dtype)
    elif kind == "is_causal":
        p.flags = tw.CAUSAL | c_attention.TOP_LEFT
        p.live = back + rows - keys >= 0
    elif kind == "last row at the last key":
        p.flags = tw.CAUSAL
        p.live = back >= 0
    elif kind == "window":
        p.flags, p.window_left = tw.CAUSAL, draw.randrange(keys + 2)
        p.live = (back >= 0) & (back <= p.window_left)


def drawn(index: int) -> Drawn:
    draw = Draw(index)
    torch.manual_seed(index)
    dtype = draw.choice([torch.float32, torch.float32, torch.float16, torch.bfloat16])
    batch, heads_kv, group = draw.randint(1, 3), draw.randint(1, 3), draw.choice([1, 1, 2, 3, 4])
    rows, keys, dim = draw.size(250), draw.size(600 if index % 10 == 0 else 200), draw.size(256)
    value_dim = dim if draw.random() < 0.7 else draw.size(256)
    p = Drawn(
        q=draw.tensor(batch, heads_kv * group, rows, dim, dtype),
        k=draw.tensor(batch, heads_kv, keys, dim, dtype),
        v=draw.tensor(batch, heads_kv, keys, value_dim, dtype),
        dout=draw.tensor(batch, heads_kv * group, rows, value_dim, dtype),
    )
    p.scale = draw.choice([None, None, None, 0.0, -0.3, 0.02, 0.4])
    add_mask(draw, p)
    return p


def sdpa(p: Drawn, dtype: torch.dtype, gradients: bool) -> dict[str, torch.Tensor]:
    """In fp64 by its math back end, in other types by what it chooses."""
    leaves = {
        name: x.to(dtype).detach().requires_grad_(gradients)
        for name, x in (("q", p.q), ("k", p.k), ("v", p.v), ("bias", p.added))
        if x is not None
    }
    exact = dtype == torch.float64
    # With is_causal and a scale of 0 or less what PyTorch chooses gives NaN: its -inf is scaled too.
    is_causal = p.flags == tw.CAUSAL | c_attention.TOP_LEFT and (exact or p.scale is None or p.scale > 0)
    mask = leaves.get("bias", None if is_causal else p.live)
    with sdpa_kernel(SDPBackend.MATH) if exact else contextlib.nullcontext():
        out = scaled_dot_product_attention(
            leaves["q"], leaves["k"], leaves["v"], mask, is_causal=is_causal, scale=p.scale, enable_gqa=True
        )
        results = {"out": out.detach()}
        if gradients:
            computed = torch.autograd.grad(out, list(leaves.values()), p.dout.to(dtype))
            results |= {f"d{name}": gradient for name, gradient in zip(leaves, computed, strict=True)}
    return results


def tilewise(library: tw.Library, p: Drawn, gradients: bool) -> dict[str, torch.Tensor]:
    problem = p.c_problem()
    out, lse = c_attention.forward(library, problem)
    results = {"out": out.transpose(1, 2), "lse": lse}
    if gradients:
        computed = c_attention.backward(library, problem, out, lse, p.dout.transpose(1, 2))
        results |= {f"d{name}": x if name == "bias" else x.transpose(1, 2) for name, x in computed.items()}
    return results


def sum_to(x: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Sums the axes that repeat in `shape`, and the heads that share one of k and v."""
    if x.shape[1] != shape[1] and shape[1] > 1:
        x = x.unflatten(1, (shape[1], -1)).sum(2)
    return x.sum_to_size(shape)


class Terms:
    """In fp64: the scores, and the sizes of the terms that results are sums of, whatever cancels."""

    def __init__(self, p: Drawn) -> None:
        self.p = p
        self.group = p.q.shape[1] // p.k.shape[1]
        self.scale = abs(p.q.shape[-1] ** -0.5 if p.scale is None else p.scale)
        sign = -1 if p.scale is not None and p.scale < 0 else 1
        self.q, self.k = p.q.double(), self.repeat(p.k)
        scores = sign * self.scale * self.q @ self.k.mT
        self.sizes = self.scale * self.q.abs() @ self.k.abs().mT  # of a score's terms
        if p.added is not None:
            scores = scores + p.added.double()
        if p.live is not None:
            scores = scores.masked_fill(~p.live, float("-inf"))
        self.lse = scores.logsumexp(-1)
        self.probabilities = torch.exp(scores - self.lse[..., None]).nan_to_num(0)

    def repeat(self, x: torch.Tensor) -> torch.Tensor:
        return x.double().repeat_interleave(self.group, 1)

    def roundings(self, out: torch.Tensor, gradients: bool) -> dict[str, float]:
        """What rounding may do to the terms, by output."""
        unit = UNIT[self.p.q.dtype]
        v, dout = self.repeat(self.p.v).abs(), self.p.dout.double().abs()
        weights = self.probabilities * (unit + SCORES * self.sizes)
        results = {"out": (weights @ v).max()}
        if gradients:
            weights = weights + SCORES * self.lse.nan_to_num(0, 0, 0).abs()[..., None] * self.probabilities
            saved = (dout * out.abs()).sum(-1, keepdim=True)  # rowsum(dout * out), from out in its type
            terms = weights * (dout @ v.mT + saved)
            if self.p.q.dtype != torch.float32:
                terms = terms + self.probabilities * saved * torch.finfo(self.p.q.dtype).eps / 2
            results["dq"] = (self.scale * terms @ self.k.abs()).max()
            results["dk"] = sum_to(self.scale * terms.mT @ self.q.abs(), self.p.k.shape).max()
            results["dv"] = sum_to(weights.mT @ dout, self.p.v.shape).max()
            if self.p.added is not None:
                results["dbias"] = sum_to(terms, self.p.added.shape).max()
        return {name: rounding.item() for name, rounding in results.items()}


def check_lse(terms: Terms, lse: torch.Tensor) -> None:
    dead = terms.lse == float("-inf")
    assert torch.equal(lse[dead].double(), terms.lse[dead]), "lse of rows without a live key"
    if not dead.all():
        allowed = 1e-6 * max(1, terms.lse[~dead].abs().max()) + SCORES * terms.sizes.max()
        assert (lse.double() - terms.lse)[~dead].abs().max() <= allowed, "lse"


@pytest.mark.parametrize("index", range(PROBLEMS))
def test_problem(library: tw.Library, index: int) -> None:
    gradients = index % GRADIENTS_EVERY == 0
    p = drawn(index)
    ours, terms = tilewise(library, p, gradients), Terms(p)
    exact, yardstick = (sdpa(p, dtype, gradients) for dtype in (torch.float64, p.q.dtype))
    check_lse(terms, ours.pop("lse"))
    roundings = terms.roundings(exact["out"], gradients)
    assert ours.keys() == exact.keys() == roundings.keys()
    for name, want in exact.items():
        error, standard = ((x[name].double() - want).abs().max().item() for x in (ours, yardstick))
        allowed = 2 * standard + UNIT[p.q.dtype] * want.abs().max().item() + roundings[name]
        assert error <= allowed, f"{name}: error {error:.3g}, allowed {allowed:.3g}, PyTorch's {standard:.3g}"
