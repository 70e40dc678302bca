"""An error names the argument as its caller knows it, whichever function he called."""

from __future__ import annotations

import re
import unittest

import torch

import nsa
from nsa.compat.fla import parallel_nsa
from nsa.compat.xunhaolai import compressed_attention, topk_sparse_attention
from problem import SMALL, tensors

FLOATS = (torch.float64, torch.float32)
FIRST = ("q", "k", "k[0]", "k_cmp", "v", "v[0]", "v_cmp")
INNER = ("k_cmp", "v_cmp", "k_sel", "v_sel", "k_win", "v_win", "blocks", "gates", "o_cmp", "cu_seqlens")
BOUNDS = torch.tensor([0, 40, 40, 96])


def attention(q, gates, k, v, **rest):
    """k and v: one tensor for all branches, or by k0, k1, k2 a part of three."""
    return nsa.attention(q, k, v, gates, geometry=SMALL, **rest)


def in_threes(q, gates, **rest):
    k, v = (tuple(rest.pop(f"{x}[{i}]") for i in range(3)) for x in "kv")
    return nsa.attention(q, k, v, gates, geometry=SMALL, **rest)


def calls():
    """Of every face: its name, the function of its arguments by name, the arguments."""
    q, k, v, gates = tensors(B=1, grad=False)
    blocks = nsa.select(q, nsa.compress(k[0], v[0], geometry=SMALL)[0], geometry=SMALL)
    threes = {f"{x}[{i}]": part for x, parts in (("k", k), ("v", v)) for i, part in enumerate(parts)}
    phi = {f"phi_{x}": nsa.PhiWeights(*(torch.rand(size).double() for size in ((8, D), (D, 8 * D), (D, D)))) for x, D in (("k", 16), ("v", 24))}  # fmt: skip
    yield "attention", attention, {"q": q, "k": k[0], "v": v[0], "gates": gates, "cu_seqlens": BOUNDS}
    yield "attention", attention, {"q": q, "k": k[0], "v": v[0], "gates": gates, **phi}
    yield "attention", in_threes, {"q": q, **threes, "gates": gates, "blocks": blocks}
    yield "attention", in_threes, {"q": q, **threes, "gates": gates, **phi}
    k_cmp, v_cmp = nsa.compress(k[0], v[0], geometry=SMALL)
    branches = {"k_cmp": k_cmp, "v_cmp": v_cmp, "k_sel": k[1], "v_sel": v[1], "k_win": k[2], "v_win": v[2]}
    yield "attend", lambda **x: nsa.attend(**x, geometry=SMALL), {"q": q, **branches, "gates": gates, "blocks": blocks}
    heads = {name: gates.new_ones(q.shape[:3]) for name in ("g_cmp", "g_slc", "g_swa")}
    given = {"q": q, "k": k[0], "v": v[0], **heads}
    fla = lambda **x: parallel_nsa(**x, block_size=16, window_size=8)  # noqa: E731
    yield "parallel_nsa", fla, {**given, "cu_seqlens": BOUNDS}
    yield "parallel_nsa", fla, {**given, "block_indices": blocks, "block_counts": torch.full((1, 96, 2), 4)}
    last = {"kernel_size": 8, "kernel_stride": 4, "block_size": 16, "topk": 4}
    packed = torch.tensor([0, 9, 9, 22]), nsa.compress(k[0], v[0], geometry=SMALL, cu_seqlens=BOUNDS)
    yield "compressed_attention", lambda **x: compressed_attention(**x, **last), {
        "q": q[0], "k": packed[1][0][0], "v": packed[1][1][0], "cu_seqlens_q": BOUNDS, "cu_seqlens_k": packed[0],
    }  # fmt: skip
    own = nsa.select(q, packed[1][0], geometry=SMALL, cu_seqlens=BOUNDS)[0].transpose(0, 1)
    yield "topk_sparse_attention", lambda **x: topk_sparse_attention(**x, block_size=16), {
        "q": q[0], "k": k[1][0], "v": v[1][0], "topk_idx": own, "cu_seqlens": BOUNDS,
    }  # fmt: skip


def spoilt(name, x):
    """What may be wrong with an argument."""
    if isinstance(x, nsa.PhiWeights):
        yield "the dtype of a part", x._replace(fc1=x.fc1.float())
        yield "the shape of a part", x._replace(position=x.position[1:])
        return
    yield "a list", x.tolist()
    if x.dtype in FLOATS:
        if name not in ("gates", "g_cmp", "g_slc", "g_swa"):  # which may have any floating dtype
            yield "half as wide", x.float()
        yield "whole numbers", x.int()
        yield "sparse", x.to_sparse()
        if name.startswith("k"):
            yield "narrower", x[..., :-1]
        yield "heads less", x[..., :-1, :] if x.dim() > 3 or name in "qkv" else x[..., :-1]
    else:
        yield "floats", x.double()
        if name not in ("block_counts", "block_indices"):  # more than there are: all of them; behind the token: none
            yield "numbers that are none", torch.full_like(x, 2**20)
    if name not in ("q", "cu_seqlens", "cu_seqlens_q"):  # by q the others are judged
        yield "tokens less", x[1:] if x.dim() != 4 else x[:, 1:]
    yield "a dimension less", x[0]


class Names(unittest.TestCase):
    def test_every_call_works_as_it_is(self):
        for face, function, args in calls():
            with self.subTest(face, args=list(args)):
                function(**args)

    def test_the_name_is_the_callers(self):
        tried = 0
        for face, function, args in calls():
            for name, x in args.items():
                for what, bad in spoilt(name, x):
                    with self.subTest(face, argument=name, wrong=what):
                        tried += 1
                        with self.assertRaises((ValueError, TypeError)) as caught:
                            function(**{**args, name: bad})
                        self.assert_named(str(caught.exception), face, name, what, args)
        self.assertGreater(tried, 200)

    def assert_named(self, words, face, name, what, args):
        first = re.match(rf"(?:{face}: )?([\w.\[\]]+)(?: is |: |\[)", words)
        self.assertIsNotNone(first, words)
        told = first[1].split(".")[0] if name.startswith("phi_") else first[1]
        # Of two that do not fit each other the later one is named: the dtype of all is held against q's, sizes against
        # q's and those of the first key and value, the values of a branch against its keys.
        fits = {name}
        if what == "half as wide" and name == "q" or what in ("heads less", "tokens less") and name in FIRST:
            fits = set(args)
        elif what == "heads less":
            fits = {name, f"v{name[1:]}"}
        self.assertIn(told, fits, words)
        self.assertIn("; allowed: ", words)
        for inner in INNER:
            if inner not in args:
                self.assertNotRegex(words, rf"(?<![\w.]){inner}(?= is |: | which|,)")


if __name__ == "__main__":
    unittest.main()
