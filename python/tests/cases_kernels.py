"""Our kernels behind the operators, against plain PyTorch in fp64: on a GPU, or wherever backend="cuda" is served."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import threading
import unittest

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import nsa
from cases_operators import ALL, OPS, WITHOUT_BACKWARD, backward_call, calls
from nsa.compat.fla import parallel_nsa
from problem import GPU, plain, plainly, tensors

DEVICE = "cuda" if GPU else "cpu"
GEOMETRY = nsa.Geometry(8, 4, 16, 4, 24)
SIZES = {"S": 256, "Hq": 8, "G": 2, "Dk": 64, "Dv": 64} if GPU else {"S": 40, "Hq": 2, "G": 1, "Dk": 32, "Dv": 32}
PACKED = torch.tensor([0, 17, 17, 20, SIZES["S"]], dtype=torch.int32)


def served():
    x = torch.zeros(1, 8, 1, 32, dtype=torch.bfloat16, device=DEVICE)
    try:
        nsa.attend_window(x, x, x, geometry=GEOMETRY, backend="cuda")
    except NotImplementedError:
        return False
    return True


class Listening(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


@unittest.skipUnless(served(), "our kernels serve nothing here: there is no GPU")
class Kernels(unittest.TestCase):
    def assert_close(self, got, wanted, message):
        """Relative to the largest value: one rounding of bf16 is 1/256 of a value, and sums hold a few."""
        wanted = wanted.to(got.device)
        error = (got.double() - wanted).abs().max() / wanted.abs().max().clamp(min=1e-3)
        self.assertLess(error.item(), 0.03, message)

    def both(self, B, cu_seqlens=None, blocks=None, needed=None):
        """Inputs that bf16 holds, by the kernels, and by plain PyTorch in fp64 over the same blocks."""
        q, k, v, gates = tensors(B=B, dtype=torch.bfloat16, device=DEVICE, grad=False, **SIZES)
        own = [x.clone() for x in (q, *k, *v, gates)]
        exact = [x.double() for x in own]
        for i in range(8):
            for x in (own[i], exact[i]):
                x.requires_grad_(needed is None or i == needed)
        layout = {"geometry": GEOMETRY, "cu_seqlens": cu_seqlens}
        if blocks is None:
            blocks = nsa.select(own[0], nsa.compress(own[1], own[4], **layout)[0], **layout)
        o = nsa.attention(own[0], own[1:4], own[4:7], own[7], blocks=blocks, backend="cuda", **layout)
        wanted = plainly(exact[0], exact[1:4], exact[4:7], exact[7], GEOMETRY, cu_seqlens, blocks)
        self.assert_close(o, wanted, "o")
        cotangent = torch.randn(o.shape, generator=torch.Generator().manual_seed(2)).to(o)
        asked = [i for i in range(8) if own[i].requires_grad]
        got = torch.autograd.grad(o, [own[i] for i in asked], cotangent)
        exactly = torch.autograd.grad(wanted, [exact[i] for i in asked], cotangent.double(), allow_unused=True)
        for i, a, b in zip(asked, got, exactly):
            self.assert_close(a, torch.zeros_like(exact[i]) if b is None else b, f"gradient of input {i}")

    def test_attention(self):
        self.both(2)

    def test_attention_of_a_packed_batch(self):
        self.both(1, PACKED)

    def test_only_what_needs_a_gradient_gets_one(self):
        for needed in range(8):
            self.both(1, needed=needed)

    def test_texts_without_a_compressed_block(self):
        for S in (1, 7, 8, 9):
            results = []
            for backend in ("cuda", "sdpa"):
                q, k, v, gates = tensors(B=1, dtype=torch.bfloat16, device=DEVICE, **{**SIZES, "S": S})
                o = nsa.attention(q, k, v, gates, geometry=GEOMETRY, backend=backend)
                results.append((o, *torch.autograd.grad(o.float().sum(), (q, *k, *v, gates))))
            for i, (own, other) in enumerate(zip(*results)):
                self.assert_close(own, other.double(), f"{S} tokens, {i}")

    def test_gates_of_another_type(self):
        q, k, v, gates = tensors(B=1, dtype=torch.bfloat16, device=DEVICE, grad=False, **SIZES)
        results = []
        for dtype in (torch.bfloat16, torch.float32, torch.float64):
            own = gates.to(dtype).requires_grad_()
            o = nsa.attention(q, k, v, own, geometry=GEOMETRY, backend="cuda")
            results.append((o, *torch.autograd.grad(o.float().sum(), own)))
            self.assertEqual(results[-1][1].dtype, dtype)
        for o, dgates in results[1:]:
            self.assertTrue(torch.equal(o, results[0][0]))
            self.assert_close(dgates, results[0][1].double(), "gates")

    def test_in_one_is_the_parts_to_the_bit(self):
        q, k, v, gates = tensors(B=1, dtype=torch.bfloat16, device=DEVICE, grad=False, **SIZES)
        last = {"geometry": GEOMETRY, "backend": "cuda"}
        k_cmp, v_cmp = nsa.compress(k[0], v[0], **last)
        blocks = nsa.select(q, k_cmp, **last)
        o = [nsa.attend_compressed(q, k_cmp, v_cmp, **last), nsa.attend_selected(q, k[1], v[1], blocks, **last)]
        o.append(nsa.attend_window(q, k[2], v[2], **last))
        self.assertTrue(torch.equal(nsa.combine(gates, *o, backend="cuda"), nsa.attention(q, k, v, gates, **last)))

    def whole(self, cu_seqlens=None, table=None, needs=True):
        """The operands of attention, and of attention_output."""
        q, k, v, gates = tensors(B=1, dtype=torch.bfloat16, device=DEVICE, grad=needs, **SIZES)
        return (q, k[0], v[0], k[1], v[1], k[2], v[2], gates, table, cu_seqlens, *GEOMETRY, "cuda")

    def test_o_alone_is_o_to_the_bit(self):
        def first_of_ten(*operands):
            return OPS.attention(*operands)[0]

        q, k, *_ = self.whole(needs=False)
        chosen = nsa.select(q, nsa.compress(k, k, geometry=GEOMETRY)[0], geometry=GEOMETRY)
        for bounds, table in ((None, None), (PACKED, None), (None, chosen)):
            results = []
            for call in (first_of_ten, OPS.attention_output):
                operands = self.whole(bounds, table)
                o = call(*operands)
                results.append((o, *torch.autograd.grad(o.float().square().sum(), operands[:8])))
            for i, (a, b) in enumerate(zip(*results)):
                self.assertTrue(torch.equal(a, b), f"{bounds}, {i}")
        with torch.inference_mode():
            self.assertTrue(torch.equal(OPS.attention_output(*self.whole()), first_of_ten(*self.whole())))

    def test_o_alone_after_other_calls(self):
        """A thread keeps what its last call was asked and the tensors over its memory: neither may reach another call."""

        def drawn(seed, **sizes):
            q, k, v, gates = tensors(B=1, dtype=torch.bfloat16, device=DEVICE, seed=seed, **{**SIZES, **sizes})
            return (q, k[0], v[0], k[1], v[1], k[2], v[2], gates, None, None, *GEOMETRY, "cuda")

        asked = [drawn(seed, **sizes) for seed, sizes in enumerate(({}, {}, {"S": SIZES["S"] - 3}, {}))]
        given = [OPS.attention_output(*operands) for operands in asked]
        with torch.no_grad():
            for_nobody = [OPS.attention_output(*operands) for operands in asked]
        for operands, o, alone in zip(asked, given, for_nobody):
            own = OPS.attention(*operands)[0]
            self.assertTrue(torch.equal(o, own))
            self.assertTrue(torch.equal(alone, own))
            gradients = [torch.autograd.grad(x.float().square().sum(), operands[:8]) for x in (o, own)]
            for a, b in zip(*gradients):
                self.assertTrue(torch.equal(a, b))

        def refused(words, **changed):
            operands = list(asked[0])
            for place, value in changed.items():
                operands[int(place.removeprefix("at_"))] = value
            OPS.attention_output(*asked[0])
            with self.assertRaisesRegex((ValueError, NotImplementedError), words):
                OPS.attention_output(*operands)

        for i in range(8):
            refused("is BFloat16 .*; allowed", **{f"at_{i}": asked[0][i][:, 1:]})
        refused("k_win is Float", at_5=asked[0][5].float())
        refused("geometry", at_13=2)
        refused("backend", at_15="none")
        refused("cu_seqlens", at_9=PACKED[:-1])

    def test_threads_keep_what_they_keep_for_themselves(self):
        """Memory, answers and graphs that wait for a thread's next call are no other thread's."""

        def call(seed, B, dtype, grad):
            q, k, v, gates = tensors(B=B, dtype=dtype, device=DEVICE, grad=grad, seed=seed, **SIZES)
            o = nsa.attention(q, k, v, gates, geometry=GEOMETRY, backend="cuda")
            return o, *(torch.autograd.grad(o.float().square().sum(), [q, *k, *v, gates]) if grad else ())

        kinds = [(0, 1, torch.bfloat16, False), (1, 1, torch.bfloat16, False), (2, 2, torch.float16, False), (3, 1, torch.bfloat16, True)]
        alone = {kind: call(*kind) for kind in kinds}
        wrong, threads = [], 4

        def work(number):
            try:
                for i in range(20 if GPU else 4):
                    kind = kinds[(number + i * (1 + number % 2)) % len(kinds)]
                    got = call(*kind)
                    if GPU:
                        torch.cuda.synchronize()
                    if not all(torch.equal(a, b) for a, b in zip(got, alone[kind], strict=True)):
                        wrong.append(kind)
            except Exception as error:  # noqa: BLE001  (a thread's own would only be printed)
                wrong.append(error)

        running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        self.assertEqual(wrong, [])

    def test_o_alone_goes_straight_unless_someone_listens(self):
        def ran(call):
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
                call()
            return {event.key for event in seen.key_averages()} & {"nsa::attention", "nsa::attention_output"}

        operands = self.whole()
        call = lambda: OPS.attention_output(*operands)  # noqa: E731
        self.assertEqual(ran(call), {"nsa::attention_output"})
        with torch.autocast(DEVICE, torch.bfloat16):
            self.assertEqual(ran(call), {"nsa::attention", "nsa::attention_output"})
        with Listening():
            self.assertEqual(ran(call), {"nsa::attention", "nsa::attention_output"})

    def test_what_o_alone_keeps(self):
        def gradients(*hooks):
            operands = self.whole()
            with torch.autograd.graph.saved_tensors_hooks(*hooks):
                o = OPS.attention_output(*operands)
            return torch.autograd.grad(o.float().square().sum(), operands[:8])

        def same(x):
            return x

        def elsewhere(x):  # dense, but not at the beginning of its memory
            twice = torch.cat((x.flatten(), x.flatten()))
            return twice[x.numel() :].view_as(x).to(DEVICE)

        for a, b in zip(gradients(same, same), gradients(lambda x: x.clone().cpu(), elsewhere)):
            self.assertTrue(torch.equal(a, b))
        with self.assertRaisesRegex(RuntimeError, "came back as another tensor"):
            gradients(same, lambda x: x[:-1] if x.dtype == torch.uint8 else x)

    def test_o_alone_refuses_a_second_pass_and_what_was_overwritten(self):
        operands = self.whole()
        sum_of_o = OPS.attention_output(*operands).float().sum()
        sum_of_o.backward()
        with self.assertRaisesRegex(RuntimeError, "second time"):
            sum_of_o.backward()
        sum_of_o = OPS.attention_output(*operands).float().sum()
        with torch.no_grad():
            operands[3].zero_()
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            sum_of_o.backward()

    def test_a_call_as_one_graph_and_as_launches(self):
        """NSA_GRAPH_CALLS is read once a process. On a CPU both are launches, and the wrong value is refused all the same."""
        shape, geometry = {"B": 1, **SIZES}, tuple(GEOMETRY)
        script = f"""
import sys, torch, nsa
from problem import tensors
q, k, v, gates = tensors(dtype=torch.bfloat16, device={DEVICE!r}, grad=True, **{shape!r})
for _ in range(5):
    o = nsa.attention(q, k, v, gates, geometry=nsa.Geometry(*{geometry!r}), backend="cuda")
    gradients = torch.autograd.grad(o.float().square().sum(), [q, *k, *v, gates])
sys.stdout.buffer.write(b"".join(bytes(x.detach().cpu().view(torch.uint8).flatten().tolist()) for x in (o, *gradients)))
"""
        path = os.pathsep.join(os.path.abspath(folder) for folder in sys.path if folder)
        done = {
            value: subprocess.run(
                [sys.executable, "-c", script],
                capture_output=True,
                timeout=300,
                cwd=pathlib.Path(__file__).parent,
                env={**os.environ, "PYTHONPATH": path, "NSA_GRAPH_CALLS": value, "OMP_NUM_THREADS": "1"},
            )
            for value in ("1", "0", "perhaps")
        }
        self.assertEqual(done["1"].returncode, 0, done["1"].stderr)
        self.assertGreater(len(done["1"].stdout), 0)
        self.assertEqual(done["1"].stdout, done["0"].stdout, done["0"].stderr)
        self.assertNotEqual(done["perhaps"].returncode, 0)
        self.assertIn(b"NSA_GRAPH_CALLS", done["perhaps"].stderr)

    def test_strides_that_16_byte_loads_cannot_read(self):
        q, k, v, gates = tensors(B=1, dtype=torch.bfloat16, device=DEVICE, grad=False, **SIZES)
        wanted = nsa.attention(q, k, v, gates, geometry=GEOMETRY, backend="cuda")
        odd = [torch.nn.functional.pad(x, (1, 0))[..., 1:].requires_grad_() for x in (q, *k, *v)]
        o = nsa.attention(odd[0], odd[1:4], odd[4:7], gates, geometry=GEOMETRY, backend="cuda")
        self.assertTrue(torch.equal(o, wanted))
        self.assertTrue(all(x.isfinite().all() for x in torch.autograd.grad(o.float().sum(), odd)))

    def test_opcheck(self):
        sizes = {"S": 24, "Hq": 2, "G": 1, "Dk": 32, "Dv": 32}
        for name, args in calls(DEVICE, dtype=torch.bfloat16, **sizes):
            torch.library.opcheck(getattr(OPS, name).default, args, test_utils=ALL)
            if name not in WITHOUT_BACKWARD:
                backward = getattr(OPS, f"{name}_backward").default
                torch.library.opcheck(backward, backward_call(name, args), test_utils=ALL)

    def test_parallel_nsa(self):
        q, k, v, _ = tensors(B=1, dtype=torch.bfloat16, device=DEVICE, grad=False, **SIZES)
        gates = [torch.rand(q.shape[:3], generator=torch.Generator().manual_seed(i)).to(q) for i in range(3)]
        layout = {"geometry": nsa.Geometry(16, 16, 16, 4, 20), "cu_seqlens": None}
        got = parallel_nsa(q, k[0], v[0], *gates, block_counts=4, block_size=16, window_size=20)
        x, key, value = q.double(), k[0].double(), v[0].double()
        k_cmp, v_cmp = plain.compress(key, value, **layout)
        parts = [plain.attend_compressed(x, k_cmp, v_cmp, **layout)[0]]
        parts.append(plain.attend_selected(x, key, value, plain.select(x, k_cmp, **layout), **layout)[0])
        parts.append(plain.attend_window(x, key, value, **layout)[0])
        self.assert_close(got, sum(g.double().unsqueeze(-1) * o for g, o in zip(gates, parts)), "o")
