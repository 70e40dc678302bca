"""pytorch.py against the equations, one row after the other, in fp64; and what its claims mean at their edges."""

from __future__ import annotations

import math
import types
import unittest

import naive
import torch
from client import ADAPTERS, LIES, same_bits
from package import load

RIGHT = load(ADAPTERS / "pytorch.py")
CLOSE = {"rtol": 1e-11, "atol": 1e-12}


def geometry(**sizes: int) -> types.SimpleNamespace:
    return types.SimpleNamespace(**{"l": 4, "d": 2, "l_sel": 4, "n_sel": 4, "w": 3, **sizes})


LAYOUTS = {  # B, S, documents; the last has one that is empty, one of a token, one shorter than a block
    "batched": (2, 22, None),
    "short": (1, 3, None),
    "packed": (1, 22, [0, 0, 1, 4, 22]),
}
GEOMETRIES = (geometry(), geometry(l=2, d=2, l_sel=6, n_sel=3, w=1), geometry(l=3, d=1, l_sel=3, w=40))


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Case:
    """Random inputs of one layout and one geometry."""

    def __init__(self, sizes: types.SimpleNamespace, layout: str, groups: int = 2, heads: int = 3):
        batch, tokens, documents = LAYOUTS[layout]
        self.sizes = sizes
        self.cu_seqlens = None if documents is None else torch.tensor(documents, dtype=torch.int32)
        self.layout = {"geometry": sizes, "cu_seqlens": self.cu_seqlens}
        self.q = randn(batch, tokens, groups * heads, 5, seed=1).requires_grad_()
        self.k, self.v, self.k2, self.k3 = (
            randn(batch, tokens, groups, width, seed=seed).requires_grad_()
            for width, seed in ((5, 2), (7, 3), (5, 4), (5, 5))
        )
        self.gates = randn(batch, tokens, groups, 3, seed=6).softmax(-1).detach().requires_grad_()


def cases():
    for sizes in GEOMETRIES:
        for layout in LAYOUTS:
            yield Case(sizes, layout)


class AgainstTheEquations(unittest.TestCase):
    def compare(self, ours, theirs, inputs):
        """Values, and gradients by one random cotangent."""
        torch.testing.assert_close(ours, theirs, **CLOSE)
        cotangent = randn(*ours.shape, seed=9)
        found = torch.autograd.grad(ours, inputs, cotangent, allow_unused=True)
        if not theirs.requires_grad:
            self.assertTrue(all(gradient is None or not gradient.any() for gradient in found))
            return
        expected = torch.autograd.grad(theirs, inputs, cotangent, allow_unused=True)
        for one, other, x in zip(found, expected, inputs):
            other = torch.zeros_like(x) if other is None else other
            torch.testing.assert_close(torch.zeros_like(x) if one is None else one, other, **CLOSE)

    def test_every_part(self):
        for x in cases():
            with self.subTest(geometry=x.sizes, cu_seqlens=x.cu_seqlens):
                ours = RIGHT.compress(x.k, x.v, **x.layout)
                for one, source in zip(ours, (x.k, x.v)):
                    self.compare(one, naive.compress(source, x.sizes, x.cu_seqlens), [source])
                k_cmp, v_cmp = (one.detach().requires_grad_() for one in ours)
                o, lse = RIGHT.attend_compressed(x.q, k_cmp, v_cmp, **x.layout)
                expected, expected_lse = naive.attend_compressed(x.q, k_cmp, v_cmp, x.sizes, x.cu_seqlens)
                self.compare(o, expected, [x.q, k_cmp, v_cmp])
                torch.testing.assert_close(lse, expected_lse, **CLOSE)
                blocks = RIGHT.select(x.q, k_cmp, **x.layout)
                with torch.no_grad():
                    self.assertTrue(torch.equal(blocks, naive.select(x.q, k_cmp, x.sizes, x.cu_seqlens)))
                o, lse = RIGHT.attend_selected(x.q, x.k, x.v, blocks, **x.layout)
                expected, expected_lse = naive.attend_selected(x.q, x.k, x.v, blocks, x.sizes, x.cu_seqlens)
                self.compare(o, expected, [x.q, x.k, x.v])
                torch.testing.assert_close(lse, expected_lse, **CLOSE)
                o, lse = RIGHT.attend_window(x.q, x.k, x.v, **x.layout)
                expected, expected_lse = naive.attend_window(x.q, x.k, x.v, x.sizes, x.cu_seqlens)
                self.compare(o, expected, [x.q, x.k, x.v])
                torch.testing.assert_close(lse, expected_lse, **CLOSE)
                branches = [randn(*o.shape, seed=seed).requires_grad_() for seed in (11, 12, 13)]
                self.compare(RIGHT.combine(x.gates, *branches), naive.combine(x.gates, *branches), [x.gates, *branches])

    def test_the_whole(self):
        for layout in LAYOUTS:
            x = Case(geometry(), layout)
            k_cmp, v_cmp = RIGHT.compress(x.k, x.v, **x.layout)
            keys = (x.k2, x.v, x.k3, x.v)
            ours = RIGHT.attend(x.q, k_cmp, v_cmp, *keys, x.gates, **x.layout, blocks=None)
            rest = (x.sizes, x.cu_seqlens)
            blocks = naive.select(x.q.detach(), k_cmp.detach(), *rest)
            branches = (
                naive.attend_compressed(x.q, *(naive.compress(y, *rest) for y in (x.k, x.v)), *rest)[0],
                naive.attend_selected(x.q, x.k2, x.v, blocks, *rest)[0],
                naive.attend_window(x.q, x.k3, x.v, *rest)[0],
            )
            self.compare(ours, naive.combine(x.gates, *branches), [x.q, x.k, x.v, x.k2, x.k3, x.gates])


class Edges(unittest.TestCase):
    def test_a_window_sees_w_tokens_and_its_own_is_one(self):
        x = Case(geometry(w=3), "batched")
        o, _ = RIGHT.attend_window(x.q, x.k, x.v, **x.layout)
        (gradient,) = torch.autograd.grad(o[:, 10].sum(), x.v)
        self.assertEqual(gradient.abs().sum((0, 2, 3)).nonzero().flatten().tolist(), [8, 9, 10])

    def test_of_equal_blocks_the_lower_is_chosen(self):
        sizes = geometry(l=4, d=4, l_sel=4, n_sel=4)
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            for q, k_cmp in (
                (torch.zeros(1, 40, 4, 8), randn(1, 10, 2, 8)),  # every score is the same
                (randn(1, 40, 4, 8), randn(1, 1, 2, 8).expand(1, 10, 2, 8)),  # every block is the same
            ):
                blocks = RIGHT.select(q.to(dtype), k_cmp.to(dtype), geometry=sizes, cu_seqlens=None)
                self.assertEqual(blocks[0, 39].tolist(), [[0, 1, 8, 9]] * 2)

    def test_a_row_that_sees_nothing_is_zero(self):
        for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
            x = Case(geometry(), "batched")
            k_cmp, v_cmp = (y.detach().to(dtype) for y in RIGHT.compress(x.k, x.v, **x.layout))
            q = x.q.detach().to(dtype).requires_grad_()
            o, lse = RIGHT.attend_compressed(q, k_cmp, v_cmp, **x.layout)
            self.assertFalse(o[:, :3].any())
            self.assertTrue((lse[..., :3] == -math.inf).all())
            self.assertEqual((o.dtype, lse.dtype), (dtype, torch.float64 if dtype == torch.float64 else torch.float32))
            (gradient,) = torch.autograd.grad(o.float().sum(), q)
            self.assertFalse(gradient[:, :3].any())
            self.assertTrue(gradient.isfinite().all())

    def test_a_block_number_that_is_padding_or_twice_there_changes_nothing(self):
        x = Case(geometry(), "batched")
        table = torch.tensor([0, 2, -1, -1], dtype=torch.int32).expand(2, 22, 2, 4)
        twice = torch.tensor([0, 2, 2, -1], dtype=torch.int32).expand(2, 22, 2, 4)
        one, other = (RIGHT.attend_selected(x.q, x.k, x.v, blocks, **x.layout)[0] for blocks in (table, twice))
        self.assertTrue(same_bits(one.detach(), other.detach()))


class Lies(unittest.TestCase):
    """Every liar lies: a judge that finds nothing has found nothing because it did not look."""

    def differing(self, liar: str, layout: str = "batched") -> list[str]:
        """The functions of an adapter whose numbers or gradients are not those of pytorch.py."""
        lies, x = load(LIES / f"{liar}.py"), Case(geometry(), layout)
        k_cmp, v_cmp = (y.detach().requires_grad_() for y in RIGHT.compress(x.k, x.v, **x.layout))
        flat = torch.zeros_like(x.q)  # every block is as good as the other
        blocks = RIGHT.select(flat, k_cmp, **x.layout)
        calls = {
            "compress": (x.k, x.v),
            "attend_compressed": (x.q, k_cmp, v_cmp),
            "select": (flat, k_cmp),
            "attend_selected": (x.q, x.k, x.v, blocks),
            "attend_window": (x.q, x.k, x.v),
        }
        found = []
        for name, inputs in calls.items():
            told, true = (self.results(getattr(module, name), inputs, x.layout) for module in (lies, RIGHT))
            if told != true:
                found.append(name)
        branches = (x.gates, *(randn(*x.q.shape, seed=seed) for seed in (1, 2, 3)))
        if self.results(lies.combine, branches, {}) != self.results(RIGHT.combine, branches, {}):
            found.append("combine")
        return found

    @staticmethod
    def results(function, inputs, layout) -> list:
        outputs = function(*inputs, **layout)
        outputs = list(outputs) if isinstance(outputs, tuple) else [outputs]
        wanted = [x for x in inputs if x.requires_grad]
        gradients = []
        if outputs[0].requires_grad:
            gradients = torch.autograd.grad(outputs[0], wanted, torch.ones_like(outputs[0]), allow_unused=True)
        return [None if result is None else (result.dtype, result.tolist()) for result in (*outputs, *gradients)]

    def test_each_in_the_function_that_it_names(self):
        for liar, layout, functions in (
            ("right_everything", "packed", []),
            ("window_plus_one", "batched", ["attend_window"]),
            ("ties_the_other_way", "batched", ["select"]),
            ("detaches_k", "batched", ["attend_selected"]),
            ("other_bits_each_time", "batched", ["attend_window"]),
            ("other_dtype", "batched", ["attend_window"]),
            ("lse_in_base_2", "batched", ["attend_window"]),
            ("ignores_documents", "batched", []),
            ("ignores_documents", "packed", ["attend_selected", "attend_window"]),
            ("heads_modulo_groups", "batched", ["attend_window"]),
            ("window_from_the_far_end", "packed", ["attend_window"]),
            ("gradient_times_two", "batched", ["attend_window"]),
            ("ignores_gates", "batched", ["combine"]),
            ("nan_at_513", "batched", []),
        ):
            with self.subTest(liar=liar, layout=layout):
                self.assertEqual(self.differing(liar, layout), functions)

    def test_nan_at_513(self):
        liar = load(LIES / "nan_at_513.py")
        for tokens, bad in ((512, False), (513, True)):
            x = torch.zeros(1, tokens, 1, 2)
            o, _ = liar.attend_window(x, x, x, geometry=geometry(), cu_seqlens=None)
            self.assertEqual(o.isnan().any().item(), bad)

    def test_raises_above_64(self):
        liar = load(LIES / "raises_above_64.py")
        x = torch.zeros(1, 65, 1, 2)
        liar.attend_window(*[x[:, 1:]] * 3, geometry=geometry(), cu_seqlens=None)
        with self.assertRaises(ValueError):
            liar.attend_window(x, x, x, geometry=geometry(), cu_seqlens=None)

    def test_those_that_are_right_are(self):
        x = Case(geometry(), "batched", heads=1)
        inputs = (x.q, x.k, x.k2)
        o, lse = RIGHT.attend_window(*inputs, **x.layout)
        _, base_2 = load(LIES / "right_lse_base_2.py").attend_window(*inputs, **x.layout)
        torch.testing.assert_close(base_2 * math.log(2), lse, **CLOSE)
        wider, _ = RIGHT.attend_window(*inputs, geometry=geometry(w=4), cu_seqlens=None)
        also, _ = load(LIES / "right_window_plus_one.py").attend_window(*inputs, **x.layout)
        self.assertTrue(same_bits(wider.detach(), also.detach()))
        narrow = {"geometry": geometry(w=1), "cu_seqlens": None}
        itself = load(LIES / "right_returns_its_input.py").attend_window(*inputs, **narrow)
        self.assertIs(itself, inputs[2])
        torch.testing.assert_close(RIGHT.attend_window(*inputs, **narrow)[0], itself)
        sizes = {"geometry": geometry(l=4, d=4, l_sel=4, n_sel=4), "cu_seqlens": None}
        flat = torch.zeros(1, 40, 4, 8), randn(1, 10, 2, 8)
        higher = load(LIES / "right_ties_higher.py").select(*flat, **sizes)
        self.assertEqual(higher[0, 39].tolist(), [[0, 7, 8, 9]] * 2)
