"""What must not be computed is refused by its argument's name: tensors of several devices, numbers that do not fit,
files that are not as they were written."""

from __future__ import annotations

import json
import struct
import tempfile
import unittest
import warnings
from pathlib import Path

import torch

import nsa
from nsa.compat.fla import parallel_nsa
from nsa.compat.xunhaolai import compressed_attention
from problem import SMALL, tensors


class Refusals(unittest.TestCase):
    def assert_refused(self, error, words, function, *args, **options):
        with self.assertRaises(error) as caught:
            function(*args, **options)
        self.assertIn(words, str(caught.exception))


class Devices(Refusals):
    """Meta tensors have no memory: a result of them and others would be memory that nobody wrote."""

    def test_one_meta_tensor_among_others_is_named(self):
        for grad in (False, True):
            q, k, v, gates = tensors(B=1, grad=grad)
            k_cmp, _ = nsa.compress(k[0], v[0], geometry=SMALL)
            args = {"q": q, **{f"k[{i}]": x for i, x in enumerate(k)}, **{f"v[{i}]": x for i, x in enumerate(v)}, "gates": gates}
            args["blocks"] = nsa.select(q, k_cmp, geometry=SMALL)
            for name in args:
                x = {**args, name: args[name].to("meta")}
                told = "k[0] is on cpu; allowed: meta, as q" if name == "q" else f"{name} is on meta; allowed: cpu, as q"
                with self.subTest(name, grad=grad):
                    self.assert_refused(
                        ValueError, f"attention: {told}", nsa.attention, x["q"], [x[f"k[{i}]"] for i in range(3)],
                        [x[f"v[{i}]"] for i in range(3)], x["gates"], blocks=x["blocks"], geometry=SMALL,
                    )  # fmt: skip

    def test_the_parts_name_it_too(self):
        q, (k, *_), (v, *_), gates = tensors(grad=False)
        meta = [x.to("meta") for x in (q, k, v)]
        blocks = torch.zeros(2, 96, 2, 4, dtype=torch.int32)
        self.assert_refused(ValueError, "attend_window: k is on meta", nsa.attend_window, q, meta[1], v, geometry=SMALL)
        self.assert_refused(ValueError, "attend_window: k is on cpu", nsa.attend_window, meta[0], k, v, geometry=SMALL)
        self.assert_refused(ValueError, "compress: v is on meta", nsa.compress, k, meta[2], geometry=SMALL)
        self.assert_refused(ValueError, "select: k_cmp is on meta", nsa.select, q, meta[1][:, :23], geometry=SMALL)
        self.assert_refused(ValueError, "attend_selected: v is on meta", nsa.attend_selected, q, k, meta[2], blocks, geometry=SMALL)
        self.assert_refused(ValueError, "combine: o_sel is on meta", nsa.combine, gates, q, meta[0], q)

    def test_bounds_without_values_are_named(self):
        q, (k, *_), (v, *_), gates = tensors(B=1, grad=False)
        bounds = torch.tensor([0, 96], dtype=torch.int32, device="meta")
        words = "cu_seqlens: is int32 [2] on meta; allowed: numbers that can be read"
        self.assert_refused(ValueError, words, nsa.attention, q, k, v, gates, geometry=SMALL, cu_seqlens=bounds)
        words = "attend_window: cu_seqlens is on meta; allowed: the CPU"
        self.assert_refused(ValueError, words, torch.ops.nsa.attend_window, q, k, v, bounds, *SMALL, "auto")

    def test_meta_tensors_alone_give_a_meta_tensor(self):
        for phi in ("avg", "mlp"):
            with self.subTest(phi):
                layer = nsa.NativeSparseAttention(64, 4, 2, 16, 16, geometry=SMALL, phi=phi).to("meta")
                for bounds in (None, torch.tensor([0, 30, 70])):
                    o = layer(torch.empty(1, 70, 64, device="meta"), bounds)
                    self.assertEqual((o.device.type, tuple(o.shape)), ("meta", (1, 70, 64)))
        meta = [x.to("meta") for x in (torch.empty(1, 96, 4, 16), *[torch.empty(1, 96, 2, 16)] * 2, torch.empty(1, 96, 2, 3))]
        self.assert_refused(ValueError, "attention: geometry l=8 d=0", nsa.attention, *meta, geometry=SMALL._replace(d=0))
        self.assert_refused(ValueError, "backend: is 'x'; allowed: ", nsa.attention, *meta, geometry=SMALL, backend="x")


class Arguments(Refusals):
    def test_bounds_that_int32_does_not_hold_are_named(self):
        q, (k, *_), (v, *_), gates = tensors(B=1, grad=False)
        layer = nsa.NativeSparseAttention(64, 4, 2, 16, 16, geometry=SMALL)
        for bounds, words in (
            ([0, 2**32 + 96], "[1] = 4294967392; allowed: a number of tokens, at most 2147483647"),
            ([2**32, 2**32 + 96], "[0] = 4294967296"),
            ([0, 2**32 + 35, 96], "[1] = 4294967331"),
            ([0, -(2**40), 96], "[1] = -1099511627776"),
            ([0, 50, 40, 96], "[2] = 40 after [1] = 50; allowed: it does not decrease"),
            ([0, 95], "[1] = 95; allowed: the 96 tokens of the batch"),
        ):
            packed = {"geometry": SMALL, "cu_seqlens": torch.tensor(bounds)}
            with self.subTest(bounds=bounds):
                self.assert_refused(ValueError, f"cu_seqlens: {words}", nsa.attention, q, k, v, gates, **packed)
                self.assert_refused(ValueError, f"cu_seqlens: {words}", nsa.compress, k, v, **packed)
                self.assert_refused(ValueError, f"cu_seqlens: {words}", layer, torch.rand(1, 96, 64), packed["cu_seqlens"])
        self.assert_refused(TypeError, "cu_seqlens: is 2 things in a list", layer, torch.rand(1, 96, 64), [0, 96])
        self.assert_refused(ValueError, "cu_seqlens: is int64 [0]", layer, torch.rand(1, 96, 64), torch.tensor([], dtype=torch.int64))
        self.assert_refused(TypeError, "x: is NoneType; allowed: a tensor [B, S, 64]", layer, None)

    def test_narrowed_bounds_pass_opcheck(self):
        bounds = torch.tensor([0, 7, 5, 2**31 - 1, 96, 96])[::2]
        torch.library.opcheck(torch.ops.nsa.narrow_bounds.default, (bounds,))
        self.assertTrue(torch.equal(torch.ops.nsa.narrow_bounds(bounds), bounds.int()))

    def functions(self):
        q, (k, *_), (v, *_), gates = tensors(grad=False)
        phi = [nsa.PhiWeights(*(torch.zeros(size).double() for size in ((8, D), (D, 8 * D), (D, D)))) for D in (16, 24)]
        yield lambda **x: nsa.attention(q, k, v, gates, **{"geometry": SMALL, **x})
        yield lambda **x: nsa.attention(q, k, v, gates, phi_k=phi[0], phi_v=phi[1], **{"geometry": SMALL, **x})
        yield lambda **x: nsa.attend_window(q, k, v, **{"geometry": SMALL, **x})
        yield lambda **x: nsa.compress(k, v, **{"geometry": SMALL, **x})
        yield lambda **x: nsa.compress(k, v, phi_k=phi[0], phi_v=phi[1], **{"geometry": SMALL, **x})

    def test_a_geometry_is_five_whole_numbers(self):
        for function in self.functions():
            function()
            function(geometry=tuple(SMALL))
            for geometry in (None, 5, {"l": 8}, (8, 4, 16, 4)):
                self.assert_refused(TypeError, f"geometry: is {geometry!r}; allowed: nsa.Geometry(l, d,", function, geometry=geometry)
            for value in (1.5, "a", None, 8.0):
                for name in ("l", "w"):
                    words = f"geometry.{name}: is {value!r}; allowed: a whole number"
                    self.assert_refused(TypeError, words, function, geometry=SMALL._replace(**{name: value}))
            words = "geometry.w: is 9223372036854775808; allowed: a whole number of 64 bits"
            self.assert_refused(ValueError, words, function, geometry=SMALL._replace(w=2**63))

    def test_a_geometry_beyond_a_configurations_is_named(self):
        first, _, window, compress, _ = self.functions()
        for function in (first, window, compress):
            for name, most in (("l_sel", 2**20), ("n_sel", 65536), ("w", 2**20)):
                words = f"geometry.{name}: is {2**40}; allowed: an integer up to {most}"
                self.assert_refused(ValueError, words, function, geometry=SMALL._replace(**{name: 2**40}))
            huge = SMALL._replace(l=2**62, d=2**62, l_sel=2**62)
            self.assert_refused(ValueError, f"geometry.l: is {2**62}; allowed: ", function, geometry=huge)
        window(geometry=SMALL._replace(w=2**20))

    def test_sizes_of_others_signatures_are_named(self):
        q, (k, *_), (v, *_), _ = tensors(grad=False, Dv=16)
        gate = torch.ones(q.shape[:3])
        words = "window_size: is 1048577; allowed: a whole number from 0 to 1048576"
        self.assert_refused(ValueError, words, parallel_nsa, q, k, v, gate, gate, gate, block_size=16, window_size=2**20 + 1)
        words = "block_counts: is 131072; allowed: 4, 8, 16, ... 65536"
        self.assert_refused(NotImplementedError, words, parallel_nsa, q, k, v, gate, block_counts=2**17, block_size=16)
        bounds = torch.tensor([0, 96])
        words = "topk: is 65537; allowed: 0, or 3 to 65536"
        self.assert_refused(ValueError, words, compressed_attention, q[0], k[0], v[0], 8, 4, 16, 65537, bounds, bounds)

        for words, options in (
            ("block_counts: is -1; allowed: a whole number from 0", {"block_counts": -1}),
            ("block_counts: is True; allowed: a whole number", {"block_counts": True}),
            ("window_size: is True; allowed: a whole number", {"window_size": True}),
        ):
            self.assert_refused(ValueError, words, parallel_nsa, q, k, v, gate, gate, gate, block_size=16, **options)
        self.assert_refused(TypeError, "scale: is 'x'; allowed: a number", parallel_nsa, q, k, v, gate, scale="x")
        words = "topk: is 4.0; allowed: a whole number"
        self.assert_refused(TypeError, words, compressed_attention, q[0], k[0], v[0], 8, 4, 16, 4.0, bounds, bounds)

    def test_learned_compression_asks_what_the_mean_asks(self):
        _, (k, *_), (v, *_), _ = tensors(B=1, grad=False, Dv=16)
        phi = nsa.PhiWeights(*(torch.zeros(size).double() for size in ((8, 16), (16, 128), (16, 16))))
        learned = {"phi_k": phi, "phi_v": phi}
        for x, bounds in (
            *(((k, v), torch.tensor(ends)) for ends in ([0, 50], [0, 20, 10, 96], [-20, 96], [5, 96], [[0, 96]])),
            *((x, None) for x in ((k, v[:, :9]), (k, v[:, :, :1]), (k[:, :0], v[:, :0]), (k[0], v), (k.long(), v.long()))),
            ((k.repeat(2, 1, 1, 1), v.repeat(2, 1, 1, 1)), torch.tensor([0, 96])),
        ):
            with self.subTest(shapes=[y.shape for y in x], bounds=bounds):
                with self.assertRaises(ValueError) as mean:
                    nsa.compress(*x, geometry=SMALL, cu_seqlens=bounds)
                self.assert_refused(ValueError, str(mean.exception), nsa.compress, *x, geometry=SMALL, cu_seqlens=bounds, **learned)
        words = "phi_k: is 3 things in a tuple; allowed: nsa.PhiWeights(position, fc1, fc2)"
        self.assert_refused(TypeError, words, nsa.compress, k, v, geometry=SMALL, phi_k=tuple(phi))
        words = "phi_v.fc2: is NoneType; allowed: a tensor"
        self.assert_refused(TypeError, words, nsa.compress, k, v, geometry=SMALL, phi_v=phi._replace(fc2=None))

    def test_a_backend_is_one_of_three_words(self):
        q, *_, gates = tensors(grad=False)
        combine = lambda backend: nsa.combine(gates, q, q, q, backend=backend)  # noqa: E731
        for function in (*self.functions(), combine):
            for backend in (None, 3, "auto ", ["auto"]):
                self.assert_refused(ValueError, f"backend: is {backend!r}; allowed: 'auto', 'cuda', 'sdpa'", function, backend=backend)

    def test_a_layer_is_what_a_configuration_file_may_ask_for(self):
        sound = {"dim": 64, "n_heads": 4, "n_kv_groups": 2, "d_k": 16, "d_v": 16, "geometry": SMALL}
        nsa.NativeSparseAttention(**sound, gate_tau=2, rope_base=5e5, rope_scale=0.25)
        for error, words, bad in (
            (ValueError, "dim: is 0; allowed: an integer from 1 to 131072", {"dim": 0}),
            (TypeError, "dim: is 64.0; allowed: a whole number", {"dim": 64.0}),
            (TypeError, "n_heads: is True; allowed: a whole number", {"n_heads": True}),
            (ValueError, "n_heads: is 0; allowed: an integer from 1 to 1024", {"n_heads": 0}),
            (ValueError, "n_heads: is 4; allowed: a multiple of n_kv_groups (3)", {"n_kv_groups": 3}),
            (ValueError, "d_k: is 0; allowed: a multiple of 8 from 8 to 256 (RoPE", {"d_k": 0}),
            (ValueError, "d_v: is 12; allowed: a multiple of 8 from 8 to 256", {"d_v": 12}),
            (ValueError, "gate_tau: is 0; allowed: a number from 0.001 to 1000", {"gate_tau": 0}),
            (ValueError, "gate_tau: is nan; allowed: a number from 0.001 to 1000", {"gate_tau": float("nan")}),
            (TypeError, "gate_tau: is '1'; allowed: a number", {"gate_tau": "1"}),
            (ValueError, "rope_base: is 0; allowed: a number from 1 to 1000000000000", {"rope_base": 0}),
            (ValueError, "rope_base: is -5; allowed: ", {"rope_base": -5.0}),
            (ValueError, "rope_scale: is 0; allowed: a number from 1e-06 to 1e+06", {"rope_scale": 0}),
            (ValueError, "rope_scale: is inf; allowed: ", {"rope_scale": float("inf")}),
            (ValueError, "rope_scale: is nan; allowed: ", {"rope_scale": float("nan")}),
            (ValueError, "backend: is 'x'; allowed: 'auto', 'cuda', 'sdpa'", {"backend": "x"}),
            (ValueError, "geometry.d: is 4; allowed: a divisor of geometry.l (7)", {"geometry": SMALL._replace(l=7)}),
            (ValueError, "geometry.l: is 32; allowed: at most geometry.l_sel (16)", {"geometry": SMALL._replace(l=32)}),
            (ValueError, "geometry.n_sel: is 2; allowed: an integer from 3 to 65536", {"geometry": SMALL._replace(n_sel=2)}),
            (TypeError, "geometry: is None; allowed: nsa.Geometry(", {"geometry": None}),
        ):
            with self.subTest(bad):
                self.assert_refused(error, words, nsa.NativeSparseAttention, **{**sound, **bad})
        for words, bad in (("n_layers: is 0; allowed: an integer from 1 to 1024", "n_layers"), ("vocab: is 0; allowed: ", "vocab")):
            self.assert_refused(ValueError, words, nsa.LanguageModel, nsa.ModelConfig(**{bad: 0}))


class Transforms(Refusals):
    def test_vmap_gives_what_a_loop_gives(self):
        q, (k, *_), (v, *_), gates = tensors(grad=False)
        many = torch.stack([q, q + 1]).requires_grad_()
        one = lambda q: nsa.attention(q, k, v, gates, geometry=SMALL)  # noqa: E731
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mapped = torch.func.vmap(one)(many)
        looped = torch.stack([one(x) for x in many])
        self.assertTrue(torch.equal(mapped, looped))
        own, due = (torch.autograd.grad(o.square().sum(), many)[0] for o in (mapped, looped))
        self.assertTrue(due.any() and torch.equal(own, due))
        self.assert_refused(RuntimeError, "functorch transforms", torch.func.vmap(torch.func.grad(lambda q: one(q).sum())), many)


def hash64(data: bytes) -> int:
    """nsa/train/hash.hpp, written anew."""
    state, ones = 0x2545F4914F6CDD1D, 2**64 - 1
    full = len(data) // 8 * 8
    words = [*struct.unpack(f"<{full // 8}Q", data[:full]), int.from_bytes(data[full:], "little"), len(data)]
    for word in words:
        state = ((state ^ word) * 0x9E3779B97F4A7C15) & ones
        state ^= state >> 32
    return state


class Files(Refusals):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = Path(folder.name) / "step_00000001.safetensors"
        torch.manual_seed(0)
        self.model = nsa.LanguageModel(nsa.ModelConfig(8, 1, 1, 1, 8, 8, nsa=SMALL))
        self.content = self.checkpoint()

    def checkpoint(self, format="nsa-train/1", checksum=True) -> bytes:
        """As nsa-train writes them: the parameters, what a run says of itself, and the sum of all that."""
        c = self.model.config
        names = ("dim", "n_layers", "n_heads", "n_kv_groups", "d_k", "d_v", "vocab", "rope_base")
        told = {f"model.{name}": str(getattr(c, name)) for name in names}
        told |= {f"nsa.{name}": str(x) for name, x in {**c.nsa._asdict(), "phi": c.phi, "gate": c.gate, "gate_tau": c.gate_tau}.items()}
        header, data = {"__metadata__": {"facts": json.dumps({"step": 1, "config": told})}}, b""
        if format:
            header["__metadata__"]["format"] = format
        for name, x in self.model.state_dict().items():
            blob = struct.pack(f"<{x.numel()}f", *x.flatten().tolist())
            header[f"model/{name}"] = {"dtype": "F32", "shape": list(x.shape), "data_offsets": [len(data), len(data) + len(blob)]}
            data += blob
        if checksum:
            header["checksum"] = {"dtype": "U8", "shape": [8], "data_offsets": [len(data), len(data) + 8]}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        content = struct.pack("<Q", len(text)) + text + data
        return content + struct.pack("<Q", hash64(content)) if checksum else content

    def loaded(self, content):
        self.file.write_bytes(content)
        return nsa.LanguageModel.from_checkpoint(self.file)

    def assert_damaged(self, content, words):
        self.assert_refused(ValueError, words, self.loaded, content)
        self.assert_refused(ValueError, str(self.file), self.loaded, content)

    def test_a_whole_checkpoint_is_a_model(self):
        for content in (self.content, self.checkpoint(format="", checksum=False)):
            got = self.loaded(content)
            self.assertEqual(got.config, self.model.config)
            self.assertTrue(all(torch.equal(x, self.model.state_dict()[name]) for name, x in got.state_dict().items()))
        self.assertNotIn("checksum", nsa.load_tensors(self.file))

    def test_every_cut_is_noticed(self):
        whole, start = self.content, 8 + struct.unpack("<Q", self.content[:8])[0]
        for length in (0, 7, 100, start - 1):
            self.assert_damaged(whole[:length], "is no file of tensors: its header is cut off")
        for length in (start, start + 1, len(whole) // 2 + start // 2, len(whole) - 10, len(whole) - 1):
            self.assert_damaged(whole[:length], "is cut off within ")
        self.assert_damaged(whole + b"xx", "goes on after its end, for 2 bytes")
        bare = self.checkpoint(format="", checksum=False)
        self.assert_damaged(bare[:-4], "is cut off within model/")
        self.assert_damaged(bare + b"\0", "goes on after its end, for 1 bytes")

    def test_every_changed_byte_is_noticed(self):
        for place in [*range(0, len(self.content) - 8, 211), *range(len(self.content) - 8, len(self.content))]:
            changed = bytearray(self.content)
            changed[place] ^= 0x01
            with self.subTest(place=place):
                self.assert_damaged(bytes(changed), "")
        changed[-9] ^= 0x40  # in the last weight
        self.assert_damaged(bytes(changed), "is damaged: its checksum does not fit its content")

    def test_a_checkpoint_of_nsa_train_has_a_checksum(self):
        self.assert_damaged(self.checkpoint(checksum=False), "has no checksum; allowed: as its last tensor")

    def test_what_lies_among_others_is_saved_as_it_is(self):
        flat = torch.nn.utils.parameters_to_vector(self.model.parameters()).detach().clone()
        torch.nn.utils.vector_to_parameters(flat, self.model.parameters())  # each a view of one buffer
        given = self.model.state_dict() | {"row": torch.arange(6.0).view(2, 3)[1], "columns": torch.arange(6.0).view(2, 3)[:, 1:]}
        nsa.save_tensors(given, self.file)
        got = nsa.load_tensors(self.file, "model/")
        self.assertEqual(set(got), set(given))
        self.assertTrue(all(torch.equal(x, given[name]) for name, x in got.items()))

    def test_what_cannot_be_saved_is_named(self):
        self.assert_refused(TypeError, "a: is list; allowed: a tensor", nsa.save_tensors, {"a": [1]}, self.file)
        for x in (torch.ones(2, device="meta"), torch.ones(2, dtype=torch.complex64)):
            words = f"a: is {x.dtype} on {x.device}; allowed: "
            self.assert_refused(ValueError, words, nsa.save_tensors, {"a": x}, self.file)
        self.assertFalse(self.file.exists())

    def test_a_header_that_makes_no_sense_is_named(self):
        def file(header):
            text = header if isinstance(header, bytes) else json.dumps(header).encode()
            return struct.pack("<Q", len(text)) + text + bytes(16)

        entry = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
        self.file.write_bytes(file({"a": entry}))
        self.assertEqual(nsa.load_tensors(self.file)["a"].tolist(), [0.0] * 4)
        for header, words in (
            (b"{", "its header makes no sense: "),
            (b"\xff\xff", "its header makes no sense: "),
            ([], "its header holds no names with values"),
            ({"a": 5}, "its header makes no sense: a is 5"),
            ({"a": {**entry, "dtype": "F31"}}, "its header makes no sense: a is {'dtype': 'F31'"),
            (b'{"a": ' + b"[" * 100000, "its header makes no sense: "),
            ({"a": {**entry, "shape": [-4]}}, "its header makes no sense: a is "),
            ({"a": {**entry, "shape": [0, 10**23], "data_offsets": [0, 0]}}, "its header makes no sense: a is "),
            ({"a": {**entry, "data_offsets": [0]}}, "its header makes no sense: a is "),
            ({"a": {**entry, "shape": [5]}}, "does not hold a where its header says"),
            ({"a": entry, "b": {**entry, "data_offsets": [8, 24]}}, "does not hold b where its header says"),
            ({"a": {**entry, "shape": [2], "data_offsets": [8, 16]}}, "does not hold a where its header says"),
            ({"a": {**entry, "shape": [5], "data_offsets": [0, 20]}}, "is cut off within a: 4 bytes of it are missing"),
        ):
            with self.subTest(str(header)[:80]):
                self.assert_damaged(file(header), words)


del Refusals  # has no cases of its own


if __name__ == "__main__":
    unittest.main()
