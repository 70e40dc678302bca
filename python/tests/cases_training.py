"""What training asks of an operator: torch.compile, CUDA graphs, autocast, activation checkpointing, sharded modules."""

from __future__ import annotations

import time
import unittest

import torch
from torch.utils.checkpoint import checkpoint

import nsa
from problem import GPU, LONG, NO_GPU, SMALL, TAKES_LONG, tensors

DEVICE, DTYPE = ("cuda", torch.bfloat16) if GPU else ("cpu", torch.float32)
PACKED = torch.tensor([0, 40, 40, 43, 96], dtype=torch.int32)


def flat(q, k, v, gates):
    return [q, *k, *v, gates]


def attention(*x, cu_seqlens=None):
    return nsa.attention(x[0], x[1:4], x[4:7], x[7], geometry=SMALL, cu_seqlens=cu_seqlens)


def gradients(function, inputs):
    o = function(*inputs)
    return [o, *torch.autograd.grad(o.float().square().sum(), inputs)]


def layer(device=DEVICE, dtype=torch.float32, seed=0, phi="avg"):
    torch.manual_seed(seed)
    made = nsa.NativeSparseAttention(48, n_heads=4, n_kv_groups=2, d_k=32, d_v=32, geometry=SMALL, phi=phi)
    return made.to(device, dtype)


class Case(unittest.TestCase):
    def assert_equal(self, got, wanted, message):
        for i, (a, b) in enumerate(zip(got, wanted, strict=True)):
            self.assertTrue(torch.equal(a, b), f"{message}: tensor {i} differs by {(a.float() - b.float()).abs().max()}")


class Compiled(Case):
    def both(self, backend, **options):
        for B, bounds in ((2, None), (1, PACKED)):
            inputs = flat(*tensors(B=B, dtype=DTYPE, device=DEVICE, Dk=32, Dv=32))
            call = lambda *x: attention(*x, cu_seqlens=bounds)  # noqa: E731,B023
            torch.compiler.reset()
            compiled = torch.compile(call, fullgraph=True, backend=backend, **options)
            self.assert_equal(gradients(compiled, inputs), gradients(call, inputs), f"{backend}, {bounds}")

    def test_whole_graphs(self):
        self.both("aot_eager")

    def test_whole_graphs_of_any_length(self):
        torch.compiler.reset()
        compiled = torch.compile(attention, fullgraph=True, backend="aot_eager", dynamic=True)
        for S in (96, 71, 20, 130):
            inputs = flat(*tensors(S=S, dtype=DTYPE, device=DEVICE, Dk=32, Dv=32))
            self.assert_equal(gradients(compiled, inputs), gradients(attention, inputs), f"{S} tokens")

    @unittest.skipUnless(LONG, TAKES_LONG)
    def test_whole_graphs_by_inductor(self):
        self.both("inductor")

    @unittest.skipUnless(LONG, TAKES_LONG)
    def test_a_layer_by_inductor(self):
        for phi in ("avg", "mlp"):
            torch.compiler.reset()
            plain, x = layer(phi=phi), torch.randn(2, 96, 48, device=DEVICE)
            compiled = torch.compile(plain, fullgraph=True)
            torch.testing.assert_close(compiled(x), plain(x), rtol=1e-4, atol=1e-5)

    @unittest.skipUnless(LONG, TAKES_LONG)
    def test_a_layer(self):
        torch.compiler.reset()
        plain, x = layer(), torch.randn(2, 96, 48, device=DEVICE)
        compiled = torch.compile(plain, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x), plain(x))

    @unittest.skipUnless(GPU, NO_GPU)
    def test_reduce_overhead(self):
        inputs = flat(*tensors(dtype=DTYPE, device=DEVICE, Dk=32, Dv=32))
        wanted = gradients(attention, inputs)
        torch.compiler.reset()
        compiled = torch.compile(attention, fullgraph=True, mode="reduce-overhead")
        for _ in range(3):
            torch.compiler.cudagraph_mark_step_begin()
            self.assert_equal([x.clone() for x in gradients(compiled, inputs)], wanted, "reduce-overhead")


class Captured(Case):
    @unittest.skipUnless(GPU, NO_GPU)
    def test_a_cuda_graph_of_both_passes(self):
        first, second = (flat(*tensors(dtype=DTYPE, device=DEVICE, Dk=32, Dv=32, seed=seed)) for seed in (0, 1))
        static = [x.detach().clone().requires_grad_() for x in first]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                gradients(attention, static)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = gradients(attention, static)
        for inputs in (first, second):
            with torch.no_grad():
                for to, x in zip(static, inputs):
                    to.copy_(x)
            graph.replay()
            self.assert_equal(captured, gradients(attention, inputs), "replayed")


class Autocast(Case):
    def test_the_operators_get_16_bits_and_gates_stay(self):
        inputs = flat(*tensors(dtype=torch.float32, device=DEVICE, Dk=32, Dv=32))
        for dtype in (torch.bfloat16,) if DEVICE == "cpu" else (torch.bfloat16, torch.float16):
            with torch.autocast(DEVICE, dtype):
                got = gradients(attention, inputs)
            self.assertEqual(got[0].dtype, dtype)
            self.assertEqual({x.dtype for x in got[1:]}, {torch.float32})
            cast = [x.detach().to(dtype).requires_grad_() for x in inputs[:-1]] + [inputs[-1]]
            self.assert_equal(got, [x if i == 0 else x.float() for i, x in enumerate(gradients(attention, cast))], dtype)

    def test_every_part(self):
        q, k, v, gates = tensors(dtype=torch.float32, device=DEVICE, Dk=32, Dv=32, grad=False)
        with torch.autocast(DEVICE, torch.bfloat16):
            k_cmp, v_cmp = nsa.compress(k[0], v[0], geometry=SMALL)
            blocks = nsa.select(q, k_cmp.float(), geometry=SMALL)
            o = [nsa.attend_compressed(q, k_cmp, v_cmp.float(), geometry=SMALL)]
            o.append(nsa.attend_selected(q, k[1], v[1].bfloat16(), blocks, geometry=SMALL))
            o.append(nsa.attend_window(q, k[2], v[2], geometry=SMALL))
            o.append(nsa.combine(gates, o[0].float(), *o[1:]))
        self.assertEqual({x.dtype for x in (k_cmp, v_cmp, *o)}, {torch.bfloat16})

    def test_a_backward_pass_inside_casts_nothing_again(self):
        inputs = flat(*tensors(dtype=torch.float32, device=DEVICE, Dk=32, Dv=32))
        wanted = gradients(attention, inputs)
        o = attention(*inputs)
        with torch.autocast(DEVICE, torch.bfloat16):
            got = torch.autograd.grad(o.float().square().sum(), inputs)
        torch.testing.assert_close([o, *got], wanted, rtol=1e-5, atol=1e-5)  # sums of sdpa on a GPU have no order

    def test_a_layer(self):
        made, x = layer(), torch.randn(2, 96, 48, device=DEVICE)
        with torch.autocast(DEVICE, torch.bfloat16):
            o = made(x)
        o.float().sum().backward()
        self.assertEqual(o.dtype, torch.bfloat16)
        self.assertEqual({p.grad.dtype for p in made.parameters()}, {torch.float32})


class Checkpointed(Case):
    def test_the_same_bits(self):
        for reentrant in (False, True):
            inputs = flat(*tensors(dtype=DTYPE, device=DEVICE, Dk=32, Dv=32))
            again = lambda *x: checkpoint(attention, *x, use_reentrant=reentrant)  # noqa: E731,B023
            if not reentrant:
                self.assert_equal(gradients(again, inputs), gradients(attention, inputs), "not reentrant")
                continue
            again(*inputs).float().square().sum().backward()
            self.assert_equal([x.grad for x in inputs], gradients(attention, inputs)[1:], "reentrant")

    def test_a_compiled_layer(self):
        torch.compiler.reset()
        plain, x = layer(), torch.randn(2, 96, 48, device=DEVICE, requires_grad=True)
        call = lambda y: checkpoint(plain, y, use_reentrant=False)  # noqa: E731
        compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
        got, wanted = (torch.autograd.grad(f(x).square().sum(), [x, *plain.parameters()]) for f in (compiled, plain))
        torch.testing.assert_close(got, wanted)


class Sharded(Case):
    @classmethod
    def setUpClass(cls):
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("nccl" if GPU else "gloo", store=store, rank=0, world_size=1)

    @classmethod
    def tearDownClass(cls):
        torch.distributed.destroy_process_group()

    def step(self, shard):
        plain, x = layer(), torch.randn(2, 96, 48, device=DEVICE, generator=None)
        wanted = torch.autograd.grad(plain(x).square().sum(), list(plain.parameters()))
        o = shard(layer())
        o(x).square().sum().backward()
        return o, wanted

    def test_fully_shard(self):
        from torch.distributed.fsdp import fully_shard

        mesh = torch.distributed.device_mesh.init_device_mesh(DEVICE, (1,))
        sharded, wanted = self.step(lambda module: fully_shard(module, mesh=mesh))
        torch.testing.assert_close([p.grad.full_tensor() for p in sharded.parameters()], list(wanted))

    @unittest.skipUnless(GPU, NO_GPU)
    def test_fully_sharded_data_parallel(self):
        from torch.distributed.fsdp import FullyShardedDataParallel

        def shard(module):
            return FullyShardedDataParallel(module, use_orig_params=True, device_id=0)

        sharded, wanted = self.step(shard)
        got = [p.grad for p in sharded.parameters()]
        torch.testing.assert_close([x.flatten() for x in got], [x.flatten() for x in wanted])


class Overhead(unittest.TestCase):
    @unittest.skipUnless(GPU, NO_GPU)
    def test_the_host_of_a_forward_pass(self):
        """Told, not judged: a timing never decides a test. Of m7c_125m's attention, by our kernels; what the host needs
        does not depend on S. Some calls in a row, so few that their launches fit the GPU's queue: the host waits for
        nothing. bench/host_time.py takes the time apart."""
        calls, rounds = 20, 100
        q, k, v, gates = tensors(S=2048, B=1, Hq=12, dtype=DTYPE, device=DEVICE, Dk=64, Dv=64, grad=False)
        for needs in (False, True):
            for x in flat(q, k, v, gates):
                x.requires_grad_(needs)
            operands = (q, k[0], v[0], k[1], v[1], k[2], v[2], gates, None, None, *nsa.Geometry(), "cuda")
            faces = {
                "nsa.attention": lambda: nsa.attention(q, k, v, gates, backend="cuda"),
                "torch.ops.nsa.attention": lambda: torch.ops.nsa.attention.default(*operands),  # noqa: B023
            }
            for name, call in faces.items():
                took = sorted(self.microseconds(call, calls) for _ in range(rounds))
                low, middle, high = (took[int(share * (rounds - 1))] for share in (0.1, 0.5, 0.9))
                print(f"{name} on the host, gradients {needs}: {middle:.1f} us (10 % {low:.1f}, 90 % {high:.1f})")

    def microseconds(self, call, times):
        torch.cuda.synchronize()
        call()  # wakes the GPU up
        begin = time.perf_counter()
        for _ in range(times):
            call()
        return (time.perf_counter() - begin) / times * 1e6
