"""What the operators refuse (nsa/ops.cpp, python/operators.cpp), asked of shapes, dtypes and devices alone: for fake
kernels, in the words of the operators. tests/cases_traced.py holds both against each other.

Sizes may be symbols (torch.compile of any length): a question of two becomes a guard, and none of them fixes a size
that the operator leaves free. What nobody knows while tracing, sizes without a value and what stands in cu_seqlens and
blocks, is the operator's to look at when it runs.
"""

from __future__ import annotations

import torch

from nsa.arguments import BACKENDS, MOST_BLOCKS, MOST_TOKENS, SIZES, one_of

# As LibTorch calls them.
_NAMES = {
    torch.float64: "Double", torch.float32: "Float", torch.bfloat16: "BFloat16", torch.float16: "Half",
    torch.int64: "Long", torch.int32: "Int", torch.int16: "Short", torch.int8: "Char", torch.uint8: "Byte",
    torch.bool: "Bool", torch.complex64: "ComplexFloat", torch.complex128: "ComplexDouble",
}  # fmt: skip
_FLOATING = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_Q = "[B,S,Hq,Dk]"


def check_geometry(op: str, geometry) -> None:
    for name, size in zip(SIZES, geometry):
        most = MOST_BLOCKS if name == "n_sel" else MOST_TOKENS
        if size > most:
            raise ValueError(f"geometry.{name}: is {size}; allowed: an integer up to {most}")
    l, d, l_sel, n_sel, w = geometry  # noqa: E741
    if not (d >= 1 and l >= 1 and l % d == 0 and l_sel % d == 0 and l <= l_sel and n_sel >= 3 and w >= 1):
        raise ValueError(
            f"{op}: geometry l={l} d={d} l'={l_sel} n={n_sel} w={w}; allowed: d divides l and l', l <= l', n >= 3, w >= 1"
        )


def check_backend(backend: str) -> None:
    one_of("backend", backend, BACKENDS)


def check_memory(op: str, tensors: dict) -> None:
    """One tensor without memory (meta) among others brings a call of theirs to a fake kernel, and its result would be
    memory that nobody wrote."""
    first = next(iter(tensors))
    device = tensors[first].device
    for name, x in tensors.items():
        if (x.is_meta or device.type == "meta") and x.device != device and not (name == "cu_seqlens" and x.is_cpu):
            allowed = "the CPU" if name == "cu_seqlens" else f"{device}, as {first}"
            raise ValueError(f"{op}: {name} is on {x.device}; allowed: {allowed}")


def check_bounds(cu_seqlens) -> None:
    def words():
        return f"cu_seqlens: is {describe(cu_seqlens)}; allowed: Int [documents + 1] on cpu, at least one document"

    check(cu_seqlens.dtype == torch.int32 and cu_seqlens.is_cpu and cu_seqlens.dim() == 1, words)
    check(cu_seqlens.shape[0] >= 2, words)


def compressed_blocks(S, geometry):
    return torch.sym_max(0, (S - geometry[0]) // geometry[1] + 1)


class Contract:
    """The checks of one operator's tensors, as the class of this name in nsa/ops.cpp."""

    def __init__(self, op: str):
        self.op = op

    def require(self, good, name, x, allowed) -> None:
        """`allowed`: the words, or what makes them."""
        words = allowed if callable(allowed) else lambda: allowed
        check(good, lambda: f"{self.op}: {name} is {describe(x)}; allowed: {words()}")

    def activation(self, name, x, shape, may_be_empty=False) -> None:
        self.require(x.dim() == 4 and x.layout is torch.strided, name, x, f"a dense {shape}")
        self.require(x.dtype in _FLOATING, name, x, "Double, Float, BFloat16 or Half")
        for i in range(4):
            if not (i == 1 and may_be_empty):
                self.require(x.shape[i] > 0, name, x, f"{shape}, no dimension empty")

    def like(self, name, x, other, of) -> None:
        good = x.dtype == of.dtype and x.device == of.device
        self.require(good, name, x, lambda: f"dtype and device of {other}, which is {describe(of)}")

    def size(self, name, x, dim, wanted, what) -> None:
        self.require(x.shape[dim] == wanted, name, x, lambda: f"{what} = {number(wanted)} in dimension {dim}")

    def sizes(self, good, name, x, sizes, words) -> None:
        """`good` and these sizes; `words` by the sizes in words."""
        said = lambda: words(", ".join(map(number, sizes)))  # noqa: E731
        self.require(good and x.dim() == len(sizes), name, x, said)
        for own, wanted in zip(x.shape, sizes):
            self.require(own == wanted, name, x, said)

    def grouped(self, name, q, G) -> None:
        self.require(q.shape[2] % G == 0, name, q, lambda: f"Hq a multiple of the {number(G)} groups")

    def not_heads_first(self, heads_first, name, x, shape) -> None:
        self.require(not heads_first, name, x, f"{shape}; these sizes fit if heads came before tokens: transpose(1, 2)")

    def packing(self, cu_seqlens, x, name) -> None:
        if cu_seqlens is None:
            return
        self.size(name, x, 0, 1, "B (a packed batch)")
        check_bounds(cu_seqlens)

    def attention(self, q, cu_seqlens, k_name, k, v_name, v) -> None:
        self.activation("q", q, _Q)
        self.activation(k_name, k, "[B,S,G,Dk]")
        self.activation(v_name, v, "[B,S,G,Dv]")
        if _surely(q.shape[1] != k.shape[1]):  # refused anyhow: the better words
            fits = _surely(q.shape[2] == k.shape[2], q.shape[1] % k.shape[1] == 0, q.shape[2] != 1)
            self.not_heads_first(fits, "q", q, _Q)
        for name, x in ((k_name, k), (v_name, v)):
            self.like(name, x, "q", q)
            self.size(name, x, 0, q.shape[0], "B")
            self.size(name, x, 1, q.shape[1], "S")
        self.size(k_name, k, 3, q.shape[3], "Dk")
        self.size(v_name, v, 2, k.shape[2], "G")
        self.grouped("q", q, k.shape[2])
        self.packing(cu_seqlens, q, "q")

    def compressed_keys(self, q, k, geometry, cu_seqlens) -> None:
        self.activation("q", q, _Q)
        self.activation("k_cmp", k, "[B,N_c,G,Dk]", may_be_empty=True)
        self.like("k_cmp", k, "q", q)
        self.size("k_cmp", k, 0, q.shape[0], "B")
        self.size("k_cmp", k, 3, q.shape[3], "Dk")
        count = compressed_blocks(q.shape[1], geometry)
        if cu_seqlens is None and _surely(k.shape[1] != count):
            heads_first = k.shape[2] == compressed_blocks(q.shape[2], geometry)
            fits = _surely(k.shape[1] > 0) and _surely(heads_first, q.shape[1] % k.shape[1] == 0)
            self.not_heads_first(fits, "q", q, _Q)
        self.grouped("q", q, k.shape[2])
        self.packing(cu_seqlens, q, "q")
        if cu_seqlens is None:  # else its values say how many
            self.size("k_cmp", k, 1, count, "N_c")

    def compressed(self, q, k, v, geometry, cu_seqlens) -> None:
        self.compressed_keys(q, k, geometry, cu_seqlens)
        self.activation("v_cmp", v, "[B,N_c,G,Dv]", may_be_empty=True)
        self.like("v_cmp", v, "q", q)
        for i in range(3):
            self.size("v_cmp", v, i, k.shape[i], "the size of k_cmp")

    def summed(self, q, k_sel, v_sel, k_win, v_win, gates, G, Dv) -> None:
        self.size("k_sel", k_sel, 2, G, "G")
        self.size("k_win", k_win, 2, G, "G")
        self.size("v_sel", v_sel, 3, Dv, "Dv")
        self.size("v_win", v_win, 3, Dv, "Dv")
        self.activation("gates", gates, "[B,S,G,3]")
        here = gates.device == q.device
        self.sizes(here, "gates", gates, (*q.shape[:2], G, 3), lambda sizes: f"[{sizes}] on the device of q")

    def blocks(self, table, q, G, n) -> None:
        good = table.dtype == torch.int32 and table.device == q.device
        self.sizes(good, "blocks", table, (*q.shape[:2], G, n), lambda sizes: f"Int [{sizes}] on the device of q")

    def stats(self, stats, q) -> None:
        good = stats.dtype == torch.float32 and stats.device == q.device
        sizes = (q.shape[0], q.shape[2], q.shape[1], 2)
        self.sizes(good, "stats", stats, sizes, lambda sizes: f"Float [{sizes}] on the device of q")

    def gated(self, gates, o) -> None:
        """What combine asks of the gates and its first output."""
        self.activation("gates", gates, "[B,S,G,3]")
        self.size("gates", gates, 3, 3, "branches")
        self.activation("o_cmp", o, "[B,S,Hq,Dv]")
        self.size("o_cmp", o, 0, gates.shape[0], "B")
        if _surely(o.shape[1] != gates.shape[1]):
            self.not_heads_first(_surely(o.shape[2] == gates.shape[1]), "o_cmp", o, "[B,S,Hq,Dv]")
        self.size("o_cmp", o, 1, gates.shape[1], "S")
        self.grouped("o_cmp", o, gates.shape[2])
        self.require(gates.device == o.device, "gates", gates, "the device of o_cmp")

    def as_other(self, name, x, other, of) -> None:
        self.sizes(True, name, x, of.shape, lambda sizes: f"as {other}, which is {describe(of)}")
        self.like(name, x, other, of)

    def result(self, name, x, sizes, dtype, q) -> None:
        """Of what a backward operator is given that a forward pass gave, or a gradient of it."""
        good = x.dtype == dtype and x.device == q.device and x.layout is torch.strided
        self.sizes(good, name, x, sizes, lambda sizes: f"{_NAMES[dtype]} [{sizes}] on the device of q")

    def results(self, q, v, outputs: dict, stats: dict) -> None:
        for name, x in outputs.items():
            self.result(name, x, (*q.shape[:3], v.shape[3]), q.dtype, q)
        for name, x in stats.items():
            self.result(name, x, (q.shape[0], q.shape[2], q.shape[1], 2), torch.float32, q)
            contiguous = _unknown(x) or x.is_contiguous()
            check(
                contiguous, lambda: f"{self.op}: {name} has strides; allowed: contiguous, as the forward pass gave it"
            )


def check(good, words) -> None:
    """`words`: what makes them."""
    if not (good if isinstance(good, bool) else _symbolic().guard_or_true(good)):
        raise ValueError(words())


def describe(x: torch.Tensor) -> str:
    name = _NAMES.get(x.dtype, str(x.dtype).removeprefix("torch."))
    return f"{name} [{', '.join(map(number, x.shape))}] on {x.device}"


def number(size) -> str:
    """A refused call's sizes bind nothing: a symbol is told by its value, where it has one."""
    return str(size if isinstance(size, int) or _unknown(size) else int(size))


def _unknown(x) -> bool:
    return _symbolic().has_free_unbacked_symbols(x)


def _surely(*conditions) -> bool:
    """All of them, as far as is known."""
    return all(c if isinstance(c, bool) else _symbolic().guard_or_false(c) for c in conditions)


def _symbolic():  # takes long to import
    from torch.fx.experimental import symbolic_shapes

    return symbolic_shapes
