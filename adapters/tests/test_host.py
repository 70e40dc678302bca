"""The host, driven as its client drives it; and, gathered below, everything else that stands beside it.

Run it as a program, or by unittest.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

import cases_adapters  # noqa: E402
import cases_description  # noqa: E402
import cases_device_arena  # noqa: E402
import cases_numbers  # noqa: E402
from client import ADAPTERS, DTYPES, GEOMETRY, HOST, LIES, Client, same_bits  # noqa: E402

BITS = {torch.float64: torch.int64, torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}


# A client that starts a host, makes it call something that never returns, tells its process number, and waits.
PARENT = """
import json, os, subprocess, sys, time
requests, ours = os.pipe()
back, answers = os.pipe()
arena = os.memfd_create("arena")
os.ftruncate(arena, 4096)
os.environ["NSA_ADAPTER_FDS"] = f"{requests},{answers},{arena}"
command = [sys.executable, "-u", *sys.argv[1:]]
host = subprocess.Popen(command, pass_fds=(requests, answers, arena), start_new_session=True)
os.write(ours, b'{"id": 0, "do": "memory"}\\n')
os.read(back, 4096)
wire = {"dtype": "fp32", "shape": [1, 1, 1, 1], "at": 0}
sizes = dict.fromkeys(["l", "d", "l_sel", "n_sel", "w"], 3)
case = {"op": "attend_window", "device": "cpu", "inputs": dict.fromkeys("qkv", wire), "geometry": sizes}
os.write(ours, json.dumps({"id": 1, "do": "forward", **case, "arena": 4096, "room": 64}).encode() + b"\\n")
print(host.pid, flush=True)
time.sleep(600)
"""


def load_tests(loader, tests, pattern):
    """All of it in one run."""
    for module in (cases_description, cases_device_arena, cases_numbers, cases_adapters):
        tests.addTests(loader.loadTestsFromModule(module))
    return tests


def window_inputs(tokens: int = 9, dtype: torch.dtype = torch.float32, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"q": (1, tokens, 4, 8), "k": (1, tokens, 2, 8), "v": (1, tokens, 2, 8)}
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}


class Shared(unittest.TestCase):
    """Tests that share one host, which has to survive all of them."""

    adapter: Path

    @classmethod
    def setUpClass(cls):
        cls.host = Client(cls.adapter)

    @classmethod
    def tearDownClass(cls):
        answer = cls.host.ask("leave")
        code = cls.host.process.wait(30)
        cls.host.__exit__()
        assert answer["ok"] == {} and code == 0, (answer, code)


class Served(Shared):
    """Right requests, of an adapter that is right."""

    adapter = ADAPTERS / "pytorch.py"

    def test_describes_itself_and_its_python(self):
        told = self.host.ok("describe")
        self.assertEqual(told["description"]["name"], "plain PyTorch")
        self.assertEqual(told["torch"], torch.__version__)
        self.assertEqual(told["executable"], sys.executable)
        self.assertEqual(told["file"], str(self.adapter))
        self.assertEqual(told["cuda"], torch.cuda.is_available())
        self.assertEqual(told["mistakes"], [])

    def test_computes_every_function(self):
        x = window_inputs(tokens=9)
        gates = torch.rand(1, 9, 2, 3)
        _, compressed = self.host.forward("compress", {"k": x["k"], "v": x["v"]})
        self.assertEqual(list(compressed["k_cmp"].shape), [1, 3, 2, 8])
        _, chosen = self.host.forward("select", {"q": x["q"], "k_cmp": compressed["k_cmp"]})
        self.assertEqual(chosen["blocks"].dtype, torch.int32)
        self.assertEqual(chosen["blocks"][0, 8, 0].tolist(), [0, 1, 2])
        _, cmp = self.host.forward("attend_compressed", {"q": x["q"], **compressed})
        _, sel = self.host.forward("attend_selected", {**x, **chosen})
        _, win = self.host.forward("attend_window", x)
        self.assertEqual(list(win["lse"].shape), [1, 4, 9])
        branches = {"o_cmp": cmp["o"], "o_sel": sel["o"], "o_win": win["o"]}
        _, parts = self.host.forward("combine", {"gates": gates, **branches})
        keys = {"k_sel": x["k"], "v_sel": x["v"], "k_win": x["k"], "v_win": x["v"]}
        whole = {"q": x["q"], **compressed, **keys, "gates": gates}
        for blocks in ({}, chosen):
            answer, all_of_it = self.host.forward("attend", {**whole, **blocks})
            self.assertTrue(same_bits(all_of_it["o"], parts["o"]))
        self.assertIsNone(answer["call"])
        self.assertFalse(answer["requires_grad"])
        self.assertEqual(answer["changed_inputs"], [])

    def test_packed_rows_reach_the_adapter(self):
        x = window_inputs(tokens=9)
        _, packed = self.host.forward("attend_window", x, cu_seqlens=[0, 4, 4, 9])
        _, alone = self.host.forward("attend_window", {name: tensor[:, 4:] for name, tensor in x.items()})
        self.assertTrue(same_bits(packed["o"][:, 4:], alone["o"]))

    def test_gradients_of_kept_graphs_in_any_order(self):
        before = self.host.ok("memory")["graphs"]
        pairs = []
        for seed in (1, 2, 3):
            x = window_inputs(seed=seed)
            answer, outputs = self.host.forward("attend_window", x, gradients=["q", "v"])
            self.assertTrue(answer["requires_grad"])
            pairs.append((answer["call"], x, torch.ones_like(outputs["o"])))
        self.assertEqual(self.host.ok("memory")["graphs"], before + 3)
        for call, x, ones in reversed(pairs):
            _, kept = self.host.backward(call, keep=True, o=ones)
            answer, again = self.host.backward(call, keep=False, o=ones)
            expected = self.window_gradients(x, ones)
            self.assertEqual(answer["changed_inputs"], [])
            self.assertEqual(list(again), ["q", "v"])
            for name in again:
                self.assertTrue(same_bits(again[name], expected[name]))
                self.assertTrue(same_bits(again[name], kept[name]))
        self.assertEqual(self.host.ok("memory")["graphs"], before)
        gone = self.host.error("backward", call=pairs[0][0], cotangents={}, keep=False, arena=self.host.arena, room=0)
        self.assertEqual(gone["kind"], "request")

    @staticmethod
    def window_gradients(x, ones):
        right = cases_numbers.RIGHT
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in x.items()}
        o, _ = right.attend_window(**leaves, geometry=cases_numbers.geometry(**GEOMETRY), cu_seqlens=None)
        return dict(zip("qkv", torch.autograd.grad(o, list(leaves.values()), ones)))

    def test_the_log_sum_exp_has_a_gradient_too(self):
        answer, outputs = self.host.forward("attend_window", window_inputs(), gradients=["q", "v"])
        _, gradients = self.host.backward(answer["call"], lse=torch.ones_like(outputs["lse"]))
        self.assertGreater(gradients["q"].abs().max().item(), 0)
        self.assertIsNone(gradients["v"])

    def test_releases_a_graph(self):
        answer, _ = self.host.forward("attend_window", window_inputs(), gradients=["k"])
        self.assertEqual(self.host.ok("release", call=answer["call"]), {})
        self.assertEqual(self.host.error("release", call=answer["call"])["kind"], "request")

    def test_the_arena_grows_on_both_sides(self):
        for tokens in (7, 300, 2000, 5):
            x = window_inputs(tokens=tokens)
            held = self.host.arena
            answer, outputs = self.host.forward("combine", self.branches(tokens))
            self.assertGreaterEqual(answer["arena"], held)
            self.assertEqual(list(outputs["o"].shape), [1, tokens, 4, 8])
            _, outputs = self.host.forward("compress", {"k": x["k"], "v": x["v"]})
            self.assertEqual(outputs["k_cmp"].shape[1], (tokens - 4) // 2 + 1)

    @staticmethod
    def branches(tokens):
        parts = {name: torch.ones(1, tokens, 4, 8) for name in ("o_cmp", "o_sel", "o_win")}
        return {"gates": torch.full((1, tokens, 2, 3), 1 / 3), **parts}

    def test_tells_its_memory(self):
        told = self.host.ok("memory")
        self.assertGreater(told["resident"], 1 << 24)
        if not torch.cuda.is_available():
            self.assertIsNone(told["cuda_allocated"])

    def test_a_gpu_that_is_not_there(self):
        if torch.cuda.is_available():
            self.skipTest("there is one")
        error = self.host.error("forward", **self.host.call("attend_window", window_inputs(), device="cuda"))
        self.assertEqual(error["kind"], "device")

    def test_memory_of_a_gpu_that_cannot_be_had_is_no_error(self):
        memory = {"handle": "00" * 64, "size": 1 << 20, "gpu": "00" * 16}
        told = self.host.ok("share", memory=memory, arena=self.host.arena, room=0, device_room=0)
        self.assertIs(told["shared"], False)
        if not torch.cuda.is_available():
            self.assertEqual(told["why"], "this torch sees no GPU here")
        else:
            self.assertIn("it is memory of the GPU 0000", told["why"])
        self.assertNotIn("in", self.window_answer(device_room=0)["outputs"]["o"])
        for wrong in (None, {}, {**memory, "handle": "00"}, {**memory, "handle": 7}, {**memory, "size": "1"}):
            self.assertEqual(self.host.error("share", memory=wrong)["kind"], "request")

    def window_answer(self, **fields) -> dict:
        return self.host.ok("forward", **self.host.call("attend_window", window_inputs(), **fields))

    def test_wrong_requests(self):
        good = self.host.call("attend_window", window_inputs())
        shape = good["inputs"]["q"]
        wrong = {
            "op": ["no_such", 1, None],
            "device": ["tpu", None],
            "inputs": [None, [], {}, {**good["inputs"], "more": shape}, {**good["inputs"], "q": 1}],
            "geometry": [None, {}, {**GEOMETRY, "w": 0}, {**GEOMETRY, "w": 1.5}, {**GEOMETRY, "w": True}],
            "cu_seqlens": [[0, 5], [1, 9], [0, 6, 5, 9], [0], ["0", 9], 9],
            "gradients": [["o"], ["cu_seqlens"], "q"],
            "arena": [None, -1, good["arena"] + (1 << 40), "1"],
            "room": [None, 1.5],
            "device_room": [1.5, "0", -256],
        }
        for part in (
            {"dtype": "int8"},
            {"dtype": None},
            {"shape": [-1, 9, 4, 8]},
            {"shape": 9},
            {"shape": [9, 4, 8]},
            {"shape": [1, 9, 4, 1 << 50]},
            {"shape": [1, True, 4, 8]},
            {"at": -64},
            {"at": 1},
            {"at": 1 << 50},
            {"at": good["arena"] // 64 * 64},
            {"at": None},
            {"in": "cuda"},
            {"in": "tpu"},
        ):
            wrong["inputs"].append({**good["inputs"], "q": {**shape, **part}})
        for key, values in wrong.items():
            for value in values:
                with self.subTest(key=key, value=value):
                    error = self.host.error("forward", **{**good, key: value})
                    self.assertEqual(error["kind"], "request", error)
                    self.assertTrue(error["message"])
        for line in ("", "{", "[]", '"x"', "null", "\xff"):
            self.assertEqual(self.host.raw(line)["error"]["kind"], "request")
        self.assertEqual(self.host.raw('{"id": 9}'), self.host.raw('{"id": 9, "do": null}'))
        self.assertEqual(self.host.raw('{"id": 9, "do": "fly"}')["id"], 9)
        self.host.forward("attend_window", window_inputs())

    def test_cotangents_must_fit(self):
        answer, outputs = self.host.forward("attend_window", window_inputs(), gradients=["q"])
        o = outputs["o"]
        for wrong in ({"o": o[:, 1:].contiguous()}, {"o": o.double()}, {"k_cmp": o}):
            wires = self.host.put(**wrong)
            where = {"arena": self.host.arena, "room": self.host.arena}
            error = self.host.error("backward", call=answer["call"], cotangents=wires, keep=False, **where)
            self.assertEqual(error["kind"], "request")
        self.host.backward(answer["call"], o=o)

    def test_only_what_is_claimed(self):
        error = self.host.error("forward", **self.host.call("attention", self.attention_inputs()))
        self.assertEqual(error["kind"], "unsupported")

    @staticmethod
    def attention_inputs():
        return {**window_inputs(), "gates": torch.rand(1, 9, 2, 3)}


class Misserved(Shared):
    """An adapter that does everything wrong, one thing after the other."""

    adapter = ADAPTERS / "tests" / "odd.py"

    def test_errors_of_every_kind(self):
        expected = {
            1: ("exception", "ValueError", "one"),
            2: ("unsupported", "NotImplementedError", "not for me"),
            3: ("shape", "", "attend_window = 3 values: allowed is o"),
            4: ("shape", "", "attend_window.o = str: allowed is a tensor [1, 9, 4, 8]"),
            5: ("dtype", "", "attend_window.o = torch.complex64: allowed is fp32"),
            6: ("device", "", "attend_window.o = meta: allowed is cpu"),
            7: ("exception", "SystemExit", "7"),
            9: ("exception", "NoText", "(an exception whose text cannot be had)"),
            10: ("shape", "", "attend_window.o = [1, 8, 4, 8]: allowed is [1, 9, 4, 8]"),
            11: ("shape", "", "attend_window.o = torch.sparse_coo: allowed is a dense tensor [1, 9, 4, 8]"),
            12: ("shape", "", "attend_window = 2 values: allowed is o alone, for describe() says lse = None"),
            13: ("cuda", "OutOfMemoryError", "CUDA out of memory"),
            16: ("exception", "KeyboardInterrupt", "not by anybody's keyboard"),
            17: ("exception", "SystemExit", "9"),
        }
        for number, told in expected.items():
            with self.subTest(number=number):
                error = self.wrong(number)
                self.assertEqual((error["kind"], error["type"], error["message"]), told)

    def wrong(self, number: int) -> dict:
        fields = self.host.call("attend_window", window_inputs(), geometry={**GEOMETRY, "w": number})
        return self.host.error("forward", **fields)

    def test_graphs_are_recorded_only_where_gradients_are_wanted(self):
        self.assertEqual(self.told(14, gradients=[]), (0.0, False))
        self.assertEqual(self.told(14, gradients=["q"]), (1.0, True))

    def test_our_modules_hide_none_of_the_adapters(self):
        self.assertEqual(self.told(15, gradients=[]), (1.0, False))

    def told(self, number: int, gradients: list[str]) -> tuple[float, bool]:
        """What a window that is no mistake makes of ones."""
        ones = {name: torch.ones_like(x) for name, x in window_inputs().items()}
        sizes = {**GEOMETRY, "w": number}
        answer, outputs = self.host.forward("attend_window", ones, geometry=sizes, gradients=gradients)
        if answer["call"] is not None:
            self.host.ok("release", call=answer["call"])
        return outputs["o"].mean().item(), answer["requires_grad"]

    def test_a_traceback_begins_at_the_adapter(self):
        lines = self.wrong(1)["traceback"].splitlines()
        self.assertEqual(lines[0], "Traceback (most recent call last):")
        self.assertIn("odd.py", lines[1])
        self.assertEqual(lines[-1], "ValueError: one")
        self.assertNotIn(str(HOST.parent), "".join(lines))

    def test_a_long_text_is_cut(self):
        error = self.wrong(8)
        self.assertLess(len(error["message"]), 25_000)
        self.assertIn("80000 characters more", error["message"])

    def test_an_exception_on_the_way_back(self):
        inputs = {**window_inputs(), "gates": torch.rand(1, 9, 2, 3)}
        for number, told in ((5, "no way back"), (7, "7"), (16, "not by anybody's keyboard")):
            sizes = {**GEOMETRY, "w": number}
            answer, outputs = self.host.forward("attention", inputs, geometry=sizes, gradients=["q"])
            wires = self.host.put(o=outputs["o"])
            where = {"arena": self.host.arena, "room": self.host.arena}
            error = self.host.error("backward", call=answer["call"], cotangents=wires, keep=False, **where)
            self.assertEqual((error["kind"], error["message"]), ("exception", told))
            self.assertIn("odd.py", error["traceback"].splitlines()[1])
            self.assertEqual(self.host.ok("memory")["graphs"], 0)

    def test_bits_travel_as_they_are(self):
        for dtype, bits in BITS.items():
            size = 8 * dtype.itemsize
            patterns = [0, 1, -1, -(1 << size - 1), (1 << size - 1) - 1]  # 0, subnormal, NaNs with payload, -0.0
            generator = torch.Generator().manual_seed(3)
            noise = torch.randint(-(1 << 15), 1 << 15, (1, 40, 2, 8), generator=generator, dtype=bits)
            noise = noise * (torch.iinfo(bits).max // (1 << 15))
            noise.reshape(-1)[: len(patterns)] = torch.tensor(patterns, dtype=bits)
            x = noise.view(dtype)
            gates = torch.zeros(1, 40, 1, 3, dtype=dtype)
            _, outputs = self.host.forward("combine", {"gates": gates, "o_cmp": x, "o_sel": x, "o_win": x})
            self.assertTrue(same_bits(outputs["o"], x), dtype)

    def test_integers_travel_as_they_are(self):
        values = torch.tensor([-(1 << 31), (1 << 31) - 1, -1, 0, 7, 1 << 30], dtype=torch.int32)
        x = {name: torch.zeros(1, 2, 1, 3, dtype=torch.float64) for name in "qkv"}
        geometry = {**GEOMETRY, "n_sel": 3}
        inputs = {**x, "blocks": values.reshape(1, 2, 1, 3)}
        _, outputs = self.host.forward("attend_selected", inputs, geometry=geometry)
        self.assertEqual(outputs["o"].reshape(-1).tolist(), values.tolist())

    def test_empty_tensors_travel(self):
        for dtype in (dtype for name, dtype in DTYPES.items() if name != "int32"):
            x = torch.zeros(1, 0, 2, 8, dtype=dtype)
            inputs = {"gates": torch.zeros(1, 0, 1, 3, dtype=dtype), "o_cmp": x, "o_sel": x, "o_win": x}
            _, outputs = self.host.forward("combine", inputs)
            self.assertTrue(same_bits(outputs["o"], x))

    def test_a_seed_repeats(self):
        inputs = {"q": torch.zeros(1, 9, 4, 8), "k_cmp": torch.zeros(1, 3, 2, 8), "v_cmp": torch.zeros(1, 3, 2, 8)}
        drawn = []
        for seed in (1, 2, 1):
            self.assertEqual(self.host.ok("seed", seed=seed), {})
            drawn.append(self.host.forward("attend_compressed", inputs)[1]["o"])
        self.assertTrue(same_bits(drawn[0], drawn[2]))
        self.assertFalse(same_bits(drawn[0], drawn[1]))

    def test_an_input_spoilt_on_the_way_back(self):
        x = window_inputs()
        answer, outputs = self.host.forward("compress", {"k": x["k"], "v": x["v"]}, gradients=["k", "v"])
        self.assertEqual(answer["changed_inputs"], [])
        answer, _ = self.host.backward(answer["call"], **outputs)
        self.assertEqual(answer["changed_inputs"], ["k"])


class Saved(Shared):
    """Calls as files that need nothing of ours. Saving makes no call, so that one adapter of each kind is enough."""

    adapter = LIES / "window_plus_one.py"

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)

    def run_script(self) -> subprocess.CompletedProcess:
        """In another folder, with no variable of ours."""
        command = [sys.executable, "-B", str(self.folder / "repro.py")]
        return subprocess.run(command, env={}, cwd="/", capture_output=True, text=True)

    def said_of(self, op: str, inputs: dict[str, torch.Tensor], **fields) -> list[str]:
        self.assertEqual(self.host.ok("save", **self.host.saved(op, inputs, self.folder, **fields)), {})
        done = self.run_script()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("NumPy", done.stderr)
        script = (self.folder / "repro.py").read_text().splitlines()
        self.assertLessEqual(max(map(len, script)), 120)
        self.assertLessEqual(len([line for line in script if line and not line.startswith("#")]), 20)
        self.assertFalse([line for line in script if line.startswith(("import nsa", "from"))])
        return done.stdout.splitlines()

    def test_a_script_shows_what_is_wrong(self):
        x, right = window_inputs(), cases_numbers.RIGHT
        o, lse = right.attend_window(**x, geometry=cases_numbers.geometry(**GEOMETRY), cu_seqlens=None)
        ones = torch.ones_like(o)
        gradients = Served.window_gradients(x, ones)
        due = {"o": o, "lse": lse, **{f"gradient of {name}": gradient for name, gradient in gradients.items()}}
        said = self.said_of("attend_window", x, gradients=list("qkv"), cotangents={"o": ones}, expected=due)
        self.assertEqual([line.split(" torch")[0] for line in said[::3]], list(due))
        for difference in said[2::3]:
            self.assertIn("difference: 0 of ", difference)
            self.assertGreater(float(difference.split()[-1]), 0.01)

    def test_the_file_of_inputs_is_plain(self):
        x = window_inputs(dtype=torch.bfloat16)
        self.said_of("attend_window", x, gradients=["k"], cu_seqlens=[0, 4, 9], cotangents={"o": x["q"]})
        saved = torch.load(self.folder / "inputs.pt", weights_only=True)
        self.assertEqual(list(saved), ["inputs", "geometry", "cu_seqlens", "cotangents", "expected"])
        self.assertEqual(saved["geometry"], GEOMETRY)
        self.assertEqual(saved["cu_seqlens"].tolist(), [0, 4, 9])
        for name, tensor in x.items():
            self.assertTrue(same_bits(saved["inputs"][name].detach(), tensor))
            self.assertEqual(saved["inputs"][name].requires_grad, name == "k")
        self.assertEqual(saved["expected"], {})

    def test_every_function_can_be_saved(self):
        x = window_inputs()
        compressed = {"k_cmp": torch.randn(1, 3, 2, 8), "v_cmp": torch.randn(1, 3, 2, 8)}
        blocks = {"blocks": torch.tensor([0, -1, -1], dtype=torch.int32).expand(1, 9, 2, 3)}
        gates, o = torch.rand(1, 9, 2, 3), torch.randn(1, 9, 4, 8)
        keys = {"k_sel": x["k"], "v_sel": x["v"], "k_win": x["k"], "v_win": x["v"]}
        whole = {"q": x["q"], **compressed, **keys, "gates": gates}
        names = {
            "compress": ({"k": x["k"], "v": x["v"]}, "k_cmp v_cmp"),
            "select": ({"q": x["q"], "k_cmp": compressed["k_cmp"]}, "blocks"),
            "attend_compressed": ({"q": x["q"], **compressed}, "o lse"),
            "attend_selected": ({**x, **blocks}, "o lse"),
            "combine": ({"gates": gates, "o_cmp": o, "o_sel": o, "o_win": o}, "o"),
            "attend": (whole, "o"),
        }
        for op, (inputs, given) in names.items():
            with self.subTest(op=op):
                self.assertEqual([line.split()[0] for line in self.said_of(op, inputs)], given.split())
        self.said_of("attend", {**whole, **blocks}, gradients=["gates"], cotangents={"o": o})
        self.assertIn('blocks=x["blocks"]', (self.folder / "repro.py").read_text())

    def test_what_writes_to_its_inputs_is_shown(self):
        with Client(LIES / "writes_into_q.py") as host:
            host.ok("save", **host.saved("attend_window", window_inputs(), self.folder, wrote=True))
        self.assertIn("inputs that it wrote to: ['q']", self.run_script().stdout.splitlines())

    def test_a_script_ends_as_the_call_did(self):
        for liar, code in (("exits", 3), ("segfaults", -signal.SIGSEGV), ("raises_above_64", 1)):
            with Client(LIES / f"{liar}.py") as host:
                host.ok("save", **host.saved("attend_window", window_inputs(tokens=65), self.folder))
            done = self.run_script()
            self.assertEqual(done.returncode, code)
        self.assertIn("ValueError: 65 tokens are too many", done.stderr)

    def test_none_and_not_finite_are_said(self):
        x = window_inputs()
        flow = {"gradients": ["q", "v"], "cotangents": {"lse": torch.ones(1, 4, 9)}}
        said = self.said_of("attend_window", {**x, "v": x["v"] * torch.inf}, **flow)
        self.assertIn("o torch.float32 [1, 9, 4, 8]: 288 of 288 not finite", said[0])
        self.assertEqual(said[-1], "gradient of v None")

    def test_nothing_is_written_through_a_link(self):
        (self.folder / "precious").write_text("keep")
        (self.folder / "inputs.pt").symlink_to(self.folder / "precious")
        error = self.host.error("save", **self.host.saved("attend_window", window_inputs(), self.folder))
        self.assertEqual((error["kind"], error["type"]), ("exception", "OSError"))
        self.assertEqual((self.folder / "precious").read_text(), "keep")

    def test_wrong_requests(self):
        good = self.host.saved("attend_window", window_inputs(), self.folder)
        wrong = {"folder": [None, 1], "title": [None], "wrote": [None, 1], "cotangents": [{"o": 1}], "expected": [[]]}
        for key, values in wrong.items():
            for value in values:
                with self.subTest(key=key, value=value):
                    self.assertEqual(self.host.error("save", **{**good, key: value})["kind"], "request")
        self.assertEqual(list(self.folder.iterdir()), [])


class Endings(unittest.TestCase):
    """Hosts that end, or have nothing to serve."""

    def test_it_ends_when_its_pipe_closes(self):
        with Client(ADAPTERS / "pytorch.py") as host:
            host.ok("memory")
            host.close_pipe()
            self.assertEqual(host.process.wait(30), 0)

    def test_deaths_are_seen(self):
        for liar, code in (("exits", 3), ("segfaults", -signal.SIGSEGV)):
            with Client(LIES / f"{liar}.py") as host:
                host.send(json.dumps({"id": 1, "do": "forward", **host.call("attend_window", window_inputs())}))
                with self.assertRaises(EOFError):
                    host.receive()
                self.assertEqual(host.process.wait(30), code)

    def test_a_users_interrupt_ends_it_wherever_it_is(self):
        with Client(LIES / "sleeps.py") as host:
            host.ok("describe")
            host.send(json.dumps({"id": 1, "do": "forward", **host.call("attend_window", window_inputs())}))
            time.sleep(0.5)  # it is inside its call now
            host.process.send_signal(signal.SIGINT)
            self.assertEqual(host.process.wait(30), 0)
            with self.assertRaises(EOFError):
                host.receive()

    def test_leaving_is_no_death(self):
        for word, kind in (("import_time", "import"), ("describe", "description")):
            for error in ("SystemExit", "KeyboardInterrupt"):
                with self.subTest(word=word, error=error), tempfile.TemporaryDirectory() as folder:
                    adapter = Path(folder) / "leaves.py"
                    where = "def describe():\n    " if word == "describe" else ""
                    adapter.write_text(f"{where}raise {error}(3)\n")
                    with Client(adapter) as host:
                        told = host.error("describe")
                        self.assertEqual((told["kind"], told["type"], told["message"]), (kind, error, "3"))
                        self.assertIn("leaves.py", told["traceback"].splitlines()[1])
                        self.assertIn("resident", host.ok("memory"))

    def test_a_torch_without_numpy_is_not_talked_about(self):
        with tempfile.TemporaryDirectory() as folder:
            adapter = Path(folder) / "warns.py"
            body = "import warnings\nwarnings.warn('Failed to initialize NumPy: none')\nwarnings.warn('of its own')\n"
            adapter.write_text(body + (ADAPTERS / "skeleton.py").read_text())
            with Client(adapter) as host:
                host.ok("describe")
                host.ok("leave")
                host.process.wait(30)
                host._drain.join()
                said = host.last_words.decode()
            checked = subprocess.run([sys.executable, str(HOST), "--check", str(adapter)], capture_output=True, text=True)
        self.assertEqual(checked.returncode, 0, checked.stderr)
        for text in (said, checked.stderr):
            self.assertNotIn("UserWarning: Failed to initialize NumPy", text)
            self.assertIn("UserWarning: of its own", text)

    def test_a_flood_on_stdout_blocks_nobody(self):
        with Client(LIES / "floods_stdout.py") as host:
            host.forward("attend_window", window_inputs())
            host.forward("attend_window", window_inputs())
            host.ok("leave")
            host.process.wait(30)
            host._drain.join()
            self.assertGreaterEqual(host.printed, 200 << 20)

    def test_an_input_written_in_place(self):
        with Client(LIES / "writes_into_q.py") as host:
            x = window_inputs()
            for gradients in ([], ["q"]):
                answer, _ = host.forward("attend_window", x, gradients=gradients)
                self.assertEqual(answer["changed_inputs"], ["q"])
            self.assertTrue(same_bits(host.take(host.put(**x)["q"]), x["q"]))

    def test_a_silent_host_and_what_it_started_die_with_its_parent(self):
        if not sys.platform.startswith("linux"):
            self.skipTest("only Linux can do it")
        command = [sys.executable, "-c", PARENT, str(HOST), str(LIES / "starts_a_sleeper.py")]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            pid = int(process.stdout.readline())
            started = eventually(lambda: [child for child in processes_of(pid) if name_of(child) == "sleep"])
            everybody = processes_of(pid)
            self.assertIn(pid, everybody)
            process.kill()
        self.assertTrue(started)
        survived = not eventually(lambda: not processes_of(pid))
        for left in processes_of(pid):
            os.kill(left, signal.SIGKILL)
        self.assertFalse(survived, everybody)

    def test_what_it_started_dies_with_it_however_it_ends(self):
        for ending in ("os._exit(3)", "os.kill(os.getpid(), 9)", "os.kill(0, 15)", "os.wait()"):
            with self.subTest(ending=ending), tempfile.TemporaryDirectory() as folder:
                adapter = Path(folder) / "ends.py"
                adapter.write_text(f"import os, subprocess\nsubprocess.Popen(['sleep', '1000'])\n{ending}\n")
                with Client(adapter, group=True) as host:
                    if ending == "os.wait()":  # for its own child: somebody ends that
                        host.send('{"id": 1, "do": "describe"}')
                        (sleeper,) = eventually(lambda: [p for p in processes_of(host.process.pid) if name_of(p) == "sleep"])
                        os.kill(sleeper, signal.SIGKILL)
                        self.assertIn(b'"description"', host.receive())  # what it lacks: it came past that
                        continue
                    host.send('{"id": 1, "do": "describe"}')
                    with self.assertRaises(EOFError):
                        host.receive()
                    self.assertTrue(eventually(lambda: not processes_of(host.process.pid)))

    def test_no_torch_is_an_answer(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "torch.py").write_text("raise ImportError('libtorch.so: no such file')\n")
            with Client(ADAPTERS / "pytorch.py", PYTHONPATH=folder) as host:
                for do in ("describe", "forward"):
                    error = host.error(do)
                    self.assertEqual((error["kind"], error["type"]), ("torch", "ImportError"))
                self.assertIn("torch.py", error["traceback"].splitlines()[1])
                self.assertEqual(host.raw("{")["error"]["kind"], "request")
                self.assertEqual(host.ok("leave"), {})
                self.assertEqual(host.process.wait(30), 0)

    def test_what_cannot_be_imported(self):
        with Client(LIES / "import_error.py") as host:
            for _ in range(2):
                error = host.error("describe")
                self.assertEqual((error["kind"], error["type"]), ("import", "ModuleNotFoundError"))
                self.assertIn("import_error.py", error["traceback"].splitlines()[1])
            self.assertIn("resident", host.ok("memory"))

    def test_what_contradicts_itself(self):
        with Client(LIES / "contradicts_itself.py") as host:
            told = host.ok("describe")
            self.assertEqual(len(told["mistakes"]), 6)
            (mistake,) = (mistake for mistake in told["mistakes"] if mistake["key"] == "dtypes")
            self.assertEqual(mistake["value"], "[]")
            self.assertIn("fp64, fp32, bf16, fp16", mistake["allowed"])
            self.assertEqual(mistake["where"], f"{LIES / 'contradicts_itself.py'}:4")
            inputs = {**window_inputs(), "gates": torch.rand(1, 9, 2, 3)}
            error = host.error("forward", **host.call("attention", inputs))
            self.assertEqual(error["kind"], "description")
            self.assertEqual(len(error["message"].splitlines()), 6)

    def test_started_by_hand_it_says_how(self):
        environment = {key: value for key, value in os.environ.items() if key != "NSA_ADAPTER_FDS"}
        told = subprocess.run([sys.executable, str(HOST), "x.py"], env=environment, capture_output=True, text=True)
        self.assertEqual((told.returncode, told.stdout), (64, ""))
        self.assertIn("--check", told.stderr)


def stat_of(pid: int) -> list[str]:
    """Name, state, parent, group and more; nothing of a process that is gone."""
    try:
        before, _, after = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [before.partition("(")[2], *after.split()]


def name_of(pid: int) -> str:
    return (stat_of(pid) or [""])[0]


def processes_of(group: int) -> list[int]:
    """Those that live."""
    numbers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    stats = ((pid, stat_of(pid)) for pid in numbers)
    return [pid for pid, stat in stats if stat and stat[1] not in "ZX" and int(stat[3]) == group]


def eventually(condition, seconds: float = 20.0):
    """What it gives, as soon as that is something."""
    deadline = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main(verbosity=2)
