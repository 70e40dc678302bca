"""Who traces a call (torch.compile, torch.export) is refused what the operator refuses, in its words; what the operator
takes is traced, and no size is fixed by it."""

from __future__ import annotations

import re
import unittest

import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

import nsa
from cases_operators import OPS, WITHOUT_BACKWARD, backward_call, calls
from problem import LONG, SMALL, TAKES_LONG, tensors

BOUNDS = torch.tensor([0, 17, 17, 40], dtype=torch.int32)
TOKENS = 40


def every_call(cu_seqlens=None):
    """Of every operator, forward and backward: its name and its arguments, by name."""
    seen = set()
    for name, args in calls(cu_seqlens=cu_seqlens, S=TOKENS):
        yield name, named(name, args)
        if name not in (*WITHOUT_BACKWARD, *seen):
            seen.add(name)
            yield f"{name}_backward", named(f"{name}_backward", backward_call(name, args))


def named(name, args):
    schema = getattr(OPS, name).default._schema.arguments
    return {a.name: x.detach() if isinstance(x, torch.Tensor) else x for a, x in zip(schema, args, strict=True)}


def spoilt(name, x):
    """What may be wrong with an argument, and some of what may not."""
    if isinstance(x, torch.Tensor):
        yield "another dtype", x.double()
        yield "whole numbers", x.short()
        yield "a dimension less", x[0]
        for i in range(x.dim()):
            yield f"one less in dimension {i}", x.narrow(i, 0, x.shape[i] - 1)
            yield f"twice dimension {i}", torch.cat([x, x], i)
        yield "empty", x[..., :0]
        if x.dim() == 4:
            yield "heads first", x.transpose(1, 2)
            yield "strides", x.transpose(1, 2).contiguous().transpose(1, 2)
    elif name == "S":
        yield "none", 0
        yield "more", x + SMALL.d
    elif name in SMALL._fields:
        yield "more than a configuration has", 2**40
        yield "zero", 0
        yield "odd", x + 1
    elif name == "backend":
        yield "another word", "flash"


def spoilt_calls(cu_seqlens):
    """What is wrong, the operator, its arguments. Values decide more than these, of which nobody who traces knows."""
    for op, args in every_call(cu_seqlens):
        for name, x in args.items():
            for what, bad in spoilt(name, x):
                if cu_seqlens is not None and op == "attention_backward" and name == "q" and what == "a dimension less":
                    continue  # no tokens: refused, for the last of cu_seqlens
                tokens = cu_seqlens is not None and ("dimension 1" in what or "heads first" in what or name in ("S", *SMALL._fields))
                if not (tokens or name == "cu_seqlens" and what.startswith(("one less", "twice"))):
                    yield f"{op}, {name}: {what}", op, {**args, name: bad}


def traced(mode, x):
    """A tensor as `mode` sees it: every size is a symbol, no two the same."""
    if not isinstance(x, torch.Tensor):
        return x
    sizes = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * x.dim())
    return mode.from_tensor(x, symbolic_context=sizes)


def symbols():
    return FakeTensorMode(shape_env=ShapeEnv(duck_shape=False))


def words(function, args):
    try:
        function(**args)
    except ValueError as error:
        return str(error)
    return None


def words_traced(function, args):
    with symbols() as mode:
        return words(function, {name: traced(mode, x) for name, x in args.items()})


def own_blocks(op, bounds, words):
    """Of room for compressed blocks the operator tells the part that is used, which the values of `bounds` say."""
    if words is None or bounds is None or op != "attention_backward":
        return words
    return re.sub(r"(?<=_cmp is )(\w+ .\d+), (7|10)\b", r"\1, N_c", words)


class Traced(unittest.TestCase):
    def both(self, bounds, every=1):
        refused = taken = 0
        for i, (what, op, args) in enumerate(spoilt_calls(bounds)):
            if i % every == 0:
                with self.subTest(what, packed=bounds is not None):
                    due = words(getattr(OPS, op), args)
                    told = words_traced(getattr(OPS, op), args)
                    self.assertEqual(*(own_blocks(op, bounds, x) for x in (told, due)))
                    refused, taken = refused + (due is not None), taken + (due is None)
        return refused, taken

    def test_some_of_what_is_refused_is_refused_in_the_same_words(self):
        refused, taken = self.both(None, every=47)
        self.assertGreater(refused, 20)
        self.assertGreater(taken, 0)

    @unittest.skipUnless(LONG, TAKES_LONG)
    def test_all_that_is_refused_is_refused_in_the_same_words(self):
        for bounds in (None, BOUNDS):
            refused, taken = self.both(bounds)
            self.assertGreater(refused, 500)
            self.assertGreater(taken, 10)

    def test_a_geometry_is_refused_of_every_operator(self):
        for op, args in every_call():
            if "d" in args:
                for d in (0, 3):
                    with self.subTest(op, d=d):
                        self.assertRegex(words_traced(getattr(OPS, op), {**args, "d": d}), f"geometry l=8 d={d} .*allowed: d divides l")

    def test_no_size_is_fixed(self):
        for op, args in every_call():
            with self.subTest(op), symbols() as mode:
                given = {name: traced(mode, x) for name, x in args.items()}
                getattr(OPS, op)(**given)
                q = next(x for x in given.values() if isinstance(x, torch.Tensor))
                fixed = {"combine": 3, "compress_backward": 1}.get(op)  # gates are three; the blocks are those of S
                for i, size in enumerate(q.shape):
                    if i != fixed:
                        self.assertTrue(mode.shape_env.simplify(size.node.expr).free_symbols, q.shape)

    def test_tensors_of_two_kinds_of_devices(self):
        with FakeTensorMode():
            q, k, v = (torch.empty(2, 96, 2, 16, device=device) for device in ("cuda:0", "cpu", "cuda:0"))
            told = "attend_window: k is Float .2, 96, 2, 16. on cpu; allowed: dtype and device of q, which is .* on cuda:0"
            with self.assertRaisesRegex(ValueError, told):
                nsa.attend_window(q, k, v, geometry=SMALL)


class CompiledCalls(unittest.TestCase):
    def test_a_compiled_call_says_what_the_call_says(self):
        for what, op, args in spoilt_calls(None):
            name = what.split(", ")[1].split(":")[0]
            if name in ("k", "gates", "blocks", "d") and what.endswith(("a dimension less", "odd")):
                told = words(getattr(OPS, op), args)
                with self.subTest(what):
                    torch.compiler.reset()
                    compiled = torch.compile(getattr(OPS, op), fullgraph=True, dynamic=True, backend="eager")
                    with self.assertRaises(torch._dynamo.exc.TorchRuntimeError) as caught:
                        compiled(**args)
                    self.assertIn(told, str(caught.exception).replace("\\'", "'"))

    def test_one_graph_serves_every_length(self):
        q, *_ = tensors(grad=False)
        torch.compiler.reset()
        counter = CompileCounterWithBackend("eager")
        compiled = torch.compile(nsa.attention, fullgraph=True, dynamic=True, backend=counter)
        for S in (96, 71, 40, 130):
            q, k, v, gates = tensors(S=S, grad=False)
            o = compiled(q, k, v, gates, geometry=SMALL)
            self.assertTrue(torch.equal(o, nsa.attention(q, k, v, gates, geometry=SMALL)))
        self.assertEqual(counter.frame_count, 1)


if __name__ == "__main__":
    unittest.main()
