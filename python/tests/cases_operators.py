"""Every operator by torch.library.opcheck, forward and backward, and its words for bad input."""

from __future__ import annotations

import unittest
import warnings
from types import SimpleNamespace
from unittest import mock

import torch

import nsa
from nsa import functional
from problem import GPU, LONG, NO_GPU, SMALL, TAKES_LONG, tensors

OPS = torch.ops.nsa
ALL = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
PACKED = torch.tensor([0, 40, 40, 43, 96], dtype=torch.int32)
WITHOUT_BACKWARD = ("select", "attention_output")


def calls(device="cpu", dtype=torch.float32, cu_seqlens=None, **sizes):
    """Of every forward operator: its name and its arguments."""
    q, k, v, gates = tensors(B=1 if cu_seqlens is not None else 2, dtype=dtype, device=device, **sizes)
    last = (cu_seqlens, *SMALL, "auto")
    k_cmp, v_cmp = (x.detach().requires_grad_() for x in OPS.compress(k[0], v[0], *last))
    blocks = OPS.select(q, k_cmp, None, *last)
    o = [torch.rand_like(q.detach()[..., :1].expand(*q.shape[:3], v[0].shape[3])).requires_grad_() for _ in range(3)]
    yield "compress", (k[0], v[0], *last)
    yield "attend_compressed", (q, k_cmp, v_cmp, *last)
    yield "select", (q, k_cmp, None, *last)
    yield "attend_selected", (q, k[1], v[1], blocks, *last)
    yield "attend_window", (q, k[2], v[2], *last)
    yield "combine", (gates, *o, "auto")
    for table in (None, blocks):
        yield "attend", (q, k_cmp, v_cmp, k[1], v[1], k[2], v[2], gates, table, *last)
    for name in ("attention", "attention_output"):
        yield name, (q, k[0], v[0], k[1], v[1], k[2], v[2], gates, None, *last)


def backward_call(name, args):
    """The arguments of the backward operator of a forward call."""
    op, args = getattr(OPS, name), [a.detach() if isinstance(a, torch.Tensor) else a for a in args]
    outputs = op(*args)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    dout = torch.ones_like(outputs[0])
    if name == "compress":
        return (*(torch.ones_like(x) for x in outputs), args[0].shape[1], *args[2:])
    if name == "combine":
        return (dout, *args[:4], [True, False, True, True], args[-1])
    *given, backend = args
    if name == "attend":
        return (dout, *given[:8], *outputs[1:], *given[9:], [True, True, False, True, True, True, True, True], backend)
    if name == "attention":
        tensors = (args[0], *outputs[8:], *given[3:8], *outputs[1:8])
        return (dout, *tensors, *given[9:], [True, False, True, True, True, True, True, True], backend)
    rest = len(SMALL) + 1
    return (dout, *given[:-rest], *outputs, *given[-rest:], [True, False, True], backend)


class Opcheck(unittest.TestCase):
    def check(self, device, **options):
        for name, args in calls(device, **options):
            with self.subTest(name):
                torch.library.opcheck(getattr(OPS, name).default, args, test_utils=ALL)
            if name not in WITHOUT_BACKWARD:
                with self.subTest(f"{name}_backward"):
                    args = backward_call(name, args)
                    torch.library.opcheck(getattr(OPS, f"{name}_backward").default, args, test_utils=ALL)

    def test_every_operator_on_the_cpu(self):
        self.check("cpu")

    @unittest.skipUnless(LONG, TAKES_LONG)
    def test_every_operator_of_a_packed_batch(self):
        # The number of compressed blocks is in the values of cu_seqlens.
        with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
            self.check("cpu", cu_seqlens=PACKED)

    @unittest.skipUnless(GPU, NO_GPU)
    def test_every_operator_on_a_gpu(self):
        self.check("cuda", dtype=torch.bfloat16, Hq=8, Dk=64, Dv=64)

    @unittest.skipUnless(GPU, NO_GPU)
    def test_every_operator_on_a_gpu_by_sdpa(self):
        self.check("cuda", dtype=torch.float32)


class BadInput(unittest.TestCase):
    def refused(self, error, *words):
        return self.assertRaisesRegex(error, ".*".join(words))

    def test_a_shape_that_does_not_fit_is_named(self):
        q, k, v, gates = tensors(grad=False)
        with self.refused(ValueError, r"attention: k\[1\] is", r"allowed: S = 96 in dimension 1"):
            nsa.attention(q, (k[0], k[1][:, 1:], k[2]), v, gates, geometry=SMALL)
        with self.refused(ValueError, "q is", r"transpose\(1, 2\)"):
            nsa.attend_window(*(x.transpose(1, 2) for x in (q, k[0], v[0])), geometry=SMALL)

    def test_a_dtype_that_does_not_fit_is_named(self):
        q, k, v, gates = tensors(grad=False)
        with self.refused(ValueError, r"attention: v\[2\] is Float", "allowed: dtype and device of q, which is Double"):
            nsa.attention(q, k, (v[0], v[1], v[2].float()), gates, geometry=SMALL)
        with self.refused(ValueError, "q is Int", "allowed: Double, Float, BFloat16 or Half"):
            nsa.attend_window(q.int(), k[0].int(), v[0].int(), geometry=SMALL)

    def test_a_geometry_that_cannot_work_is_named(self):
        q, k, v, _ = tensors(grad=False)
        with self.refused(ValueError, "geometry l=8 d=3", "allowed: d divides l"):
            nsa.attend_window(q, k[0], v[0], geometry=SMALL._replace(d=3))

    def test_indices_out_of_range_are_named(self):
        q, k, v, _ = tensors(grad=False)
        for number in (7, 2**31, 2**32, -5):
            blocks = torch.full((2, 96, 2, 4), -1)
            blocks[1, 20, 1, 0] = number
            with self.refused(ValueError, "blocks is", "ascending numbers up to 1, the token's own block", "token 20"):
                nsa.attend_selected(q, k[0], v[0], blocks, geometry=SMALL)
        with self.refused(TypeError, "blocks: is float32", "allowed: a tensor of int32 or int64"):
            nsa.attend_selected(q, k[0], v[0], torch.zeros(2, 96, 2, 4), geometry=SMALL)

    def test_a_packing_that_is_none_is_named(self):
        q, k, v, _ = tensors(B=1, grad=False)
        for bounds, words in (([1, 96], "allowed: 0"), ([0, 95], "the 96 tokens"), ([0, 50, 40, 96], "not decrease")):
            with self.refused(ValueError, "cu_seqlens: ", words):
                nsa.attend_window(q, k[0], v[0], geometry=SMALL, cu_seqlens=torch.tensor(bounds))

    def test_what_is_no_tensor_is_named(self):
        q, k, v, gates = tensors(grad=False)
        with self.refused(TypeError, "gates: is list; allowed: a tensor|gates: is 2 things in a list"):
            nsa.attention(q, k, v, [1.0, 2.0], geometry=SMALL)
        with self.refused(TypeError, "k: is 2 things in a tuple", "or three"):
            nsa.attention(q, k[:2], v, gates, geometry=SMALL)

    def test_a_backward_operator_looks_at_what_it_is_given(self):
        for name, args in calls():
            if name in WITHOUT_BACKWARD:
                continue
            args = list(backward_call(name, args))
            op = getattr(OPS, f"{name}_backward")
            with self.refused(ValueError, "_backward: d(out|k_cmp)", "; allowed: "):
                op(args[0][:, 1:], *args[1:])
            for i, x in enumerate(args):
                floating = isinstance(x, torch.Tensor) and x.is_floating_point()
                if floating and (name, i) not in (("combine", 1), ("attend", 8), ("attention", 8)):  # gates may have any dtype
                    with self.subTest(name, place=i), self.refused(ValueError, " is (BFloat16|Float) ", "; allowed: "):
                        op(*args[:i], x.bfloat16(), *args[i + 1 :])

    def test_a_sparse_tensor_is_named(self):
        q, k, v, _ = tensors(grad=False)
        with self.refused(ValueError, "k: is torch.sparse_coo; allowed: a dense tensor"):
            nsa.attend_window(q, k[0].to_sparse(), v[0], geometry=SMALL)

    def test_another_torch_is_named(self):
        for version, cuda, words in (
            ("2.10.0+cu130", "13.0", "torch is 2.10.0.*allowed: 2.11"),
            ("2.11.0+cpu", None, "built with CUDA None; allowed: CUDA 13"),
            ("2.11.0+cu126", "12.6", "built with CUDA 12.6; allowed: CUDA 13"),
        ):
            with mock.patch.object(torch, "__version__", version), mock.patch.object(torch.version, "cuda", cuda):
                with self.refused(ImportError, words):
                    nsa._load()

    def test_a_gpu_without_kernels_is_told_of_once(self):
        old = SimpleNamespace(is_cuda=True, device=torch.device("cuda:63"), get_device=lambda: 63)
        with mock.patch.object(torch.cuda, "get_device_capability", return_value=(7, 5)):
            with self.assertWarnsRegex(UserWarning, "cuda:63 has no kernels of ours.*compute capability 7.5; served: "):
                functional._tell_of_missing_kernels(old, "auto")
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                functional._tell_of_missing_kernels(old, "auto")

    def test_a_refused_call_says_who_serves_it(self):
        q, k, v, gates = tensors(grad=False)
        with self.refused(NotImplementedError, "device is cpu; served: a CUDA device", "backend='sdpa' serves it"):
            nsa.attention(q, k, v, gates, geometry=SMALL, backend="cuda")
        with self.refused(ValueError, "backend: is 'flash'; allowed: 'auto', 'cuda', 'sdpa'"):
            nsa.attention(q, k, v, gates, geometry=SMALL, backend="flash")

    def test_a_second_derivative_is_refused(self):
        q, k, v, gates = tensors()
        (dq,) = torch.autograd.grad(nsa.attention(q, k, v, gates, geometry=SMALL).sum(), q, create_graph=True)
        with self.refused(RuntimeError, "derivative for nsa::attention_backward is not implemented"):
            dq.sum().backward()

    def test_forward_mode_and_transforms_are_refused_without_gradients_too(self):
        q, k, v, gates = tensors(grad=False)
        with torch.autograd.forward_ad.dual_level(), self.refused(NotImplementedError, "jvp.* not implemented"):
            dual = torch.autograd.forward_ad.make_dual(q, torch.ones_like(q))
            nsa.attention(dual, k, v, gates, geometry=SMALL)
        with self.refused(RuntimeError, "functorch transforms"):
            torch.func.grad(lambda x: nsa.attention(x, k, v, gates, geometry=SMALL).sum())(q)

    @unittest.skipUnless(GPU, NO_GPU)
    def test_a_cpu_tensor_among_cuda_ones_is_named(self):
        q, k, v, gates = tensors(device="cuda", grad=False)
        with self.refused(ValueError, r"k\[1\] is", "on cpu; allowed: dtype and device of q", "on cuda:0"):
            nsa.attention(q, (k[0], k[1].cpu(), k[2]), v, gates, geometry=SMALL)

    @unittest.skipUnless(GPU, NO_GPU)
    def test_a_width_without_kernels_says_who_serves_it(self):
        q, k, v, gates = tensors(device="cuda", dtype=torch.bfloat16, Dk=40, Dv=40, grad=False)
        with self.refused(NotImplementedError, "d_k 40, d_v 40; served: 32/32", "backend='sdpa' serves it"):
            nsa.attention(q, k, v, gates, geometry=SMALL, backend="cuda")
