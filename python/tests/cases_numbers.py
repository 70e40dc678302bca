"""Values and gradients against plain PyTorch, and the signatures of others against loops that say what they mean."""

from __future__ import annotations

import unittest

import torch

import nsa
from nsa.compat.fla import parallel_nsa
from nsa.compat.xunhaolai import compressed_attention, topk_sparse_attention
from problem import SMALL, plain, plainly, tensors

PACKED = torch.tensor([0, 40, 40, 43, 96], dtype=torch.int32)


def leaves(q, k, v, gates):
    return [q, *k, *v, gates]


class Numbers(unittest.TestCase):
    def assert_same(self, own, theirs, inputs, atol=1e-10):
        torch.testing.assert_close(own, theirs, rtol=0, atol=atol)
        cotangent = torch.randn(own.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(own)
        got, wanted = (torch.autograd.grad(o, inputs, cotangent, allow_unused=True) for o in (own, theirs))
        for i, (a, b) in enumerate(zip(got, wanted)):
            b = torch.zeros_like(inputs[i]) if b is None else b
            torch.testing.assert_close(torch.zeros_like(b) if a is None else a, b, rtol=0, atol=atol, msg=f"gradient {i}")

    def test_attention(self):
        inputs = tensors()
        self.assert_same(nsa.attention(*inputs, geometry=SMALL), plainly(*inputs), leaves(*inputs))

    def test_attention_of_a_packed_batch(self):
        inputs = tensors(B=1)
        for bounds in (PACKED, PACKED.long()):
            own = nsa.attention(*inputs, geometry=SMALL, cu_seqlens=bounds)
            self.assert_same(own, plainly(*inputs, cu_seqlens=PACKED), leaves(*inputs))

    def test_attention_without_a_compressed_block(self):
        inputs = tensors(S=5)
        self.assert_same(nsa.attention(*inputs, geometry=SMALL), plainly(*inputs), leaves(*inputs))

    def test_attention_over_given_blocks_of_either_type(self):
        inputs = tensors()
        token = torch.arange(96) // SMALL.l_sel
        blocks = torch.full((2, 96, 2, 4), -1)
        blocks[..., 0] = token[None, :, None]
        for table in (blocks, blocks.int()):
            own = nsa.attention(*inputs, geometry=SMALL, blocks=table)
            self.assert_same(own, plainly(*inputs, blocks=blocks), leaves(*inputs))

    def test_attention_of_tensors_that_are_not_contiguous(self):
        q, k, v, gates = tensors()
        odd = [x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in leaves(q, k, v, gates)]
        own = nsa.attention(odd[0], odd[1:4], odd[4:7], odd[7], geometry=SMALL)
        self.assert_same(own, plainly(odd[0], odd[1:4], odd[4:7], odd[7]), odd)

    def test_one_key_and_value_for_all_branches(self):
        q, k, v, gates = tensors()
        own = nsa.attention(q, k[0], v[0], gates, geometry=SMALL)
        self.assert_same(own, plainly(q, (k[0],) * 3, (v[0],) * 3, gates), [q, k[0], v[0], gates])

    def test_only_what_needs_a_gradient_gets_one(self):
        for needed in range(8):
            inputs = leaves(*tensors(grad=False))
            inputs[needed].requires_grad_()
            packed = inputs[0], inputs[1:4], inputs[4:7], inputs[7]
            self.assert_same(nsa.attention(*packed, geometry=SMALL), plainly(*packed), [inputs[needed]])

    def test_the_parts(self):
        q, k, v, gates = tensors()
        layout = {"geometry": SMALL, "cu_seqlens": None}
        for i in range(2):
            own, theirs = nsa.compress(k[0], v[0], geometry=SMALL)[i], plain.compress(k[0], v[0], **layout)[i]
            self.assert_same(own, theirs, [k[0], v[0]])
        k_cmp, v_cmp = (x.detach().requires_grad_() for x in nsa.compress(k[0], v[0], geometry=SMALL))
        blocks = nsa.select(q, k_cmp, geometry=SMALL)
        self.assertTrue(torch.equal(blocks, plain.select(q, k_cmp, **layout)))
        o_cmp = nsa.attend_compressed(q, k_cmp, v_cmp, geometry=SMALL)
        self.assert_same(o_cmp, plain.attend_compressed(q, k_cmp, v_cmp, **layout)[0], [q, k_cmp, v_cmp])
        o_sel = nsa.attend_selected(q, k[1], v[1], blocks, geometry=SMALL)
        self.assert_same(o_sel, plain.attend_selected(q, k[1], v[1], blocks, **layout)[0], [q, k[1], v[1]])
        o_win = nsa.attend_window(q, k[2], v[2], geometry=SMALL)
        self.assert_same(o_win, plain.attend_window(q, k[2], v[2], **layout)[0], [q, k[2], v[2]])
        o = [x.detach().requires_grad_() for x in (o_cmp, o_sel, o_win)]
        self.assert_same(nsa.combine(gates, *o), plain.combine(gates, *o), [gates, *o])

    def test_learned_compression(self):
        q, k, v, gates = tensors(B=1)
        generator = torch.Generator().manual_seed(7)

        def weights(D):
            shapes = ((8, D), (D, 8 * D), (D, D))
            return nsa.PhiWeights(*(torch.randn(*s, generator=generator, dtype=torch.float64) / D for s in shapes))

        phi = weights(16), weights(24)
        for bounds in (None, PACKED):
            got = nsa.compress(k[0], v[0], geometry=SMALL, cu_seqlens=bounds, phi_k=phi[0], phi_v=phi[1])
            for x, w, own in zip((k[0], v[0]), phi, got):
                rows = []
                ends = [0, 96] if bounds is None else bounds.tolist()
                for begin, end in zip(ends, ends[1:]):
                    for start in range(begin, end - 7, 4):
                        block = (x[0, start : start + 8] + w.position[:, None]).transpose(0, 1).flatten(1)  # [G,l*D]
                        rows.append(torch.nn.functional.silu(block @ w.fc1.T) @ w.fc2.T)
                torch.testing.assert_close(own[0], torch.stack(rows), rtol=0, atol=1e-10)
        with torch.autocast("cpu", torch.bfloat16):
            single = [nsa.PhiWeights(*(part.float() for part in w)) for w in phi]
            for dtype in (torch.float16, torch.float32):
                x = k[0].to(dtype), v[0].to(dtype)
                for own in nsa.compress(*x, geometry=SMALL, cu_seqlens=PACKED, phi_k=single[0], phi_v=single[1]):
                    self.assertEqual(own.dtype, torch.bfloat16)


class Others(unittest.TestCase):
    """Gates of every head by itself: what nsa.attention has no argument for."""

    def test_parallel_nsa(self):
        q, k, v, _ = tensors(Dv=16)
        generator = torch.Generator().manual_seed(3)
        gates = [torch.rand(2, 96, 4, generator=generator, dtype=torch.float64) for _ in range(3)]
        geometry = nsa.Geometry(16, 16, 16, 4, 20)
        layout = {"geometry": geometry, "cu_seqlens": None}
        k_cmp, v_cmp = plain.compress(k[0], v[0], **layout)
        blocks = plain.select(q, k_cmp, **layout)
        o_cmp = plain.attend_compressed(q, k_cmp, v_cmp, **layout)[0]
        o_sel = plain.attend_selected(q, k[0], v[0], blocks, **layout)[0]
        o_win = plain.attend_window(q, k[0], v[0], **layout)[0]
        wanted = sum(g.unsqueeze(-1) * o for g, o in zip(gates, (o_cmp, o_sel, o_win)))
        sizes = {"block_counts": 4, "block_size": 16}
        torch.testing.assert_close(parallel_nsa(q, k[0], v[0], *gates, window_size=20, **sizes), wanted, rtol=0, atol=1e-6)
        # Its own table in any order, of which three count, and no compressed branch.
        table = blocks.long().flip(-1)
        last_three = plain.attend_selected(q, k[0], v[0], nsa_sorted(table[..., :3]), **layout)[0]
        own = parallel_nsa(q, k[0], v[0], block_indices=table, block_counts=3, block_size=16)
        torch.testing.assert_close(own, last_three, rtol=0, atol=1e-10)
        counts = torch.full((2, 96, 2), 3)
        own = parallel_nsa(q, k[0], v[0], g_slc=gates[1], block_indices=table, block_counts=counts, block_size=16)
        torch.testing.assert_close(own, gates[1].unsqueeze(-1) * last_three, rtol=0, atol=1e-6)

    def test_blocks_behind_the_token_are_none_to_parallel_nsa(self):
        q, k, v, _ = tensors(B=1, Dv=16, grad=False)
        for bounds in (None, PACKED):
            layout = {"geometry": nsa.Geometry(16, 16, 16, 4, 20), "cu_seqlens": bounds}
            table = plain.select(q, plain.compress(k[0], v[0], **layout)[0], **layout).long()
            self.assertTrue((table < 0).any())
            sizes = {"block_counts": 4, "block_size": 16, "cu_seqlens": bounds}
            wanted = parallel_nsa(q, k[0], v[0], block_indices=table, **sizes)
            next_block = table.amax(-1, keepdim=True) + 1
            for none in (torch.tensor(96), torch.tensor(2**40), next_block):  # FLA's callers pad with T
                padded = torch.where(table < 0, none, table)
                self.assertTrue(torch.equal(parallel_nsa(q, k[0], v[0], block_indices=padded, **sizes), wanted))

    def test_parallel_nsa_refuses_what_it_means_differently(self):
        q, k, v, _ = tensors(Dv=16, grad=False)
        gate = torch.ones(2, 96, 4)
        for words, error, options in (
            ("scale: is 1.0; allowed: None or 1/sqrt", NotImplementedError, {"scale": 1.0}),
            ("block_counts: is 12; allowed: 4, 8, 16", NotImplementedError, {"block_counts": 12}),
            ("g_swa: is None with window_size 8", ValueError, {"window_size": 8}),
            ("cu_seqlens: is a pair", NotImplementedError, {"cu_seqlens": (PACKED, PACKED)}),
        ):
            with self.assertRaises(error) as caught:
                parallel_nsa(q, k[0], v[0], gate, block_size=16, **options)
            self.assertIn(words, str(caught.exception))
        with self.assertRaisesRegex(ValueError, "block_indices: is None without g_cmp"):
            parallel_nsa(q, k[0], v[0])
        with self.assertRaisesRegex(ValueError, r"g_cmp: is float32 \[2, 96, 2\] on cpu; allowed: \[B,T,HQ\]"):
            parallel_nsa(q, k[0], v[0], gate[..., :2])

    def test_the_two_functions_of_xunhaolai(self):
        q, k, v, _ = tensors(B=1, Dv=16)
        layout = {"geometry": SMALL, "cu_seqlens": PACKED}
        k_cmp, v_cmp = plain.compress(k[0], v[0], **layout)
        counts = torch.tensor([0, 9, 9, 9, 21], dtype=torch.int32)
        o, table = compressed_attention(q[0], k_cmp[0], v_cmp[0], 8, 4, 16, 4, PACKED, counts)
        torch.testing.assert_close(o, plain.attend_compressed(q, k_cmp, v_cmp, **layout)[0][0], rtol=0, atol=1e-10)
        blocks = plain.select(q, k_cmp, **layout)
        self.assertTrue(torch.equal(table, blocks[0].transpose(0, 1)))
        own = topk_sparse_attention(q[0], k[1][0], v[1][0], table.flip(-1), 16, PACKED)
        wanted = plain.attend_selected(q, k[1], v[1], blocks, **layout)[0][0]
        torch.testing.assert_close(own, wanted, rtol=0, atol=1e-10)
        self.assertIsNone(compressed_attention(q[0], k_cmp[0], v_cmp[0], 8, 4, 16, 0, PACKED, counts)[1])
        for words, options in (
            ("cu_seqlens_k: is", {"cu_seqlens_k": PACKED}),
            ("topk: is 2", {"topk": 2}),
            ("init_blocks, local_blocks: are 1, 1", {"local_blocks": 1}),
            ("sm_scale: is 0.5", {"sm_scale": 0.5}),
        ):
            arguments = {"topk": 4, "cu_seqlens_q": PACKED, "cu_seqlens_k": counts, **options}
            with self.assertRaises((ValueError, NotImplementedError)) as caught:
                compressed_attention(q[0], k_cmp[0], v_cmp[0], 8, 4, 16, **arguments)
            self.assertIn(words, str(caught.exception))
        with self.assertRaisesRegex(ValueError, r"topk_idx: is int32 \[96, 2, 4\] on cpu; allowed: \[kv_heads"):
            topk_sparse_attention(q[0], k[1][0], v[1][0], blocks[0], 16, PACKED)


def nsa_sorted(table):
    """As ours: ascending, -1 at the end, four wide."""
    none = 1 << 30
    table = table.masked_fill(table < 0, none).sort(-1).values
    return torch.nn.functional.pad(table.masked_fill(table == none, -1), (0, 1), value=-1)
