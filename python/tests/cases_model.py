"""The layer and the model: names, files, and the same numbers as the C++ model.

NSA_LIBRARY_REFERENCE and NSA_TRAIN name the programs of those names (CMake sets both); without them their tests skip.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import torch

import nsa
from nsa.files import load_facts
from problem import ROOT

TINY = nsa.ModelConfig(64, 3, 4, 2, 16, 16, 256, 10000.0, nsa.Geometry(8, 4, 16, 4, 32))
YAML = ROOT / "configs/models/tiny.yaml"
REFERENCE, TRAIN = os.environ.get("NSA_LIBRARY_REFERENCE"), os.environ.get("NSA_TRAIN")


def names(phi):
    """nsa/README.md, "What is computed"."""
    own = ["embedding.weight", "norm.weight", "head.weight"]
    attention = [f"{name}.weight" for name in ("q", "k_cmp", "v_cmp", "k_sel", "v_sel", "k_win", "v_win", "o")]
    attention += [f"gate.{layer}.{part}" for layer in ("fc1", "fc2") for part in ("weight", "bias")]
    if phi == "mlp":
        attention += [f"{x}.{part}" for x in ("phi_k", "phi_v") for part in ("position", "fc1.weight", "fc2.weight")]
    for layer in range(3):
        parts = ["norm_attention.weight", "norm_mlp.weight", "mlp.fc1.weight", "mlp.fc2.weight"]
        own += [f"layers.{layer}.{part}" for part in parts + [f"attention.{part}" for part in attention]]
    return set(own)


def batch():
    return (torch.arange(2 * 129) * 7 % 256).view(2, 129)


class Model(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.file = Path(self.folder.name) / "weights.safetensors"

    def run_program(self, *command):
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"})
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_the_names_are_those_of_the_cpp_model(self):
        for phi in ("avg", "mlp"):
            model = nsa.LanguageModel(nsa.ModelConfig(**{**vars(TINY), "phi": phi}))
            self.assertEqual(set(model.state_dict()), names(phi))

    def test_initial_values_follow_their_laws(self):
        torch.manual_seed(0)
        layer = nsa.NativeSparseAttention(256, n_heads=8, n_kv_groups=2, phi="mlp", geometry=TINY.nsa)
        for _ in range(2):
            self.assertAlmostEqual(layer.q.weight.std().item(), 256**-0.5 / 3**0.5, delta=1e-3)
            self.assertAlmostEqual(layer.phi_k.position.std().item(), 0.02, delta=2e-3)
            self.assertAlmostEqual(layer.gate.fc2.weight.std().item(), 0.1 * (2 / (32 + 3)) ** 0.5, delta=5e-3)
            self.assertFalse(layer.gate.fc2.bias.any())
            torch.nn.init.ones_(layer.phi_k.position)
            torch.nn.init.ones_(layer.gate.fc2.bias)
            layer.reset_parameters()

    def test_a_file_comes_back_to_the_bit(self):
        tensors = {"a": torch.randn(3, 5).T, "b": torch.randn(4).bfloat16(), "c": torch.arange(3), "d": torch.empty(0, 2)}
        nsa.save_tensors(tensors, self.file, prefix="x/")
        for prefix, own in (("x/", ""), ("", "x/")):
            got = nsa.load_tensors(self.file, prefix)
            self.assertEqual(set(got), {own + name for name in tensors})
            self.assertTrue(all(torch.equal(got[own + name], x) for name, x in tensors.items()))
        with self.assertRaisesRegex(ValueError, "no tensor whose name begins with 'y/'"):
            nsa.load_tensors(self.file, "y/")
        with self.assertRaisesRegex(ValueError, "no checkpoint of nsa-train"):
            load_facts(self.file)
        self.file.write_bytes(self.file.read_bytes()[:40])
        with self.assertRaisesRegex(ValueError, "its header is cut off"):
            nsa.load_tensors(self.file)

    def test_a_packed_batch_is_its_documents(self):
        torch.manual_seed(0)
        model = nsa.LanguageModel(TINY).double()
        tokens, bounds = batch()[:1], [0, 50, 50, 53, 129]
        packed = model(tokens, torch.tensor(bounds))
        alone = [model(tokens[:, a:b]) for a, b in zip(bounds, bounds[1:]) if b > a]
        torch.testing.assert_close(packed, torch.cat(alone, 1), rtol=0, atol=1e-10)

    def test_bad_sizes_are_named(self):
        for words, options in (
            ("n_heads: is 4; allowed: a multiple of n_kv_groups (3)", {"n_kv_groups": 3}),
            ("d_k: is 15; allowed: a multiple of 8 from 8 to 256 (RoPE rotates pairs", {"d_k": 15}),
            ("phi: is 'max'; allowed: 'avg', 'mlp'", {"phi": "max"}),
            ("gate: is 'relu'; allowed: 'softmax', 'sigmoid'", {"gate": "relu"}),
        ):
            with self.assertRaises(ValueError) as caught:
                nsa.NativeSparseAttention(64, n_heads=4, **options)
            self.assertIn(words, str(caught.exception))
        with self.assertRaisesRegex(ValueError, r"x: is \[2, 8, 32\]; allowed: \[B, S, 64\]"):
            nsa.NativeSparseAttention(64, n_heads=4)(torch.zeros(2, 8, 32))

    @unittest.skipUnless(REFERENCE, "NSA_LIBRARY_REFERENCE names no program")
    def test_weights_of_the_cpp_model_give_its_loss(self):
        out = self.run_program(REFERENCE, str(YAML), str(self.file))
        wanted = float(re.search(r"loss (\S+)", out).group(1))
        model = nsa.LanguageModel(TINY)
        model.load_state_dict(nsa.load_tensors(self.file, "model/"))
        with torch.no_grad():
            self.assertAlmostEqual(model.loss(batch()).item(), wanted, delta=2e-6)
        # It is these weights: another value moves the loss by more than that.
        with torch.no_grad():
            model.layers[1].attention.v_win.weight[3, 5] += 0.5
            self.assertNotAlmostEqual(model.loss(batch()).item(), wanted, delta=2e-6)

    @unittest.skipUnless(TRAIN, "NSA_TRAIN names no program")
    def test_a_checkpoint_of_nsa_train_is_a_model(self):
        run = Path(self.folder.name) / "run"
        options = ("--steps", "2", "--set", "train.batch_size=1", "--device", "cpu", "--data", "synthetic", "--quiet")
        self.run_program(TRAIN, "--config", str(YAML), "--out", str(run), *options)
        (checkpoint,) = run.glob("checkpoints/*.safetensors")
        model = nsa.LanguageModel.from_checkpoint(checkpoint)
        self.assertEqual(model.config, TINY)
        self.assertEqual(load_facts(checkpoint)["step"], 2)
        nsa.save_tensors(model.state_dict(), self.file)
        theirs, ours = (nsa.load_tensors(file, "model/") for file in (checkpoint, self.file))
        self.assertEqual(set(theirs), set(ours))
        self.assertTrue(all(torch.equal(theirs[name], ours[name]) for name in ours))

    @unittest.skipUnless(TRAIN, "NSA_TRAIN names no program")
    def test_the_example_makes_the_steps_of_nsa_train(self):
        """fp32 on a CPU: losses and norms of ten steps, from the same seed. 1e-5: sums in another order, ten updates."""
        text, out = ROOT / "fixtures/text/corpus.txt", Path(self.folder.name) / "run"
        settings = ("train.order=sequential", "train.steps=10", "train.log_every=1", "train.warmup_steps=3", "train.eval_every=0")
        self.run_program(
            TRAIN, "--config", str(ROOT / "configs/train/tiny.yaml"), "--out", str(out), "--device", "cpu", "--quiet",
            *(word for setting in settings for word in ("--set", setting)),
        )  # fmt: skip
        lines = (out / "metrics.csv").read_text().splitlines()
        names = lines[0].split(",")
        wanted = [(float(row[names.index("loss")]), float(row[names.index("grad_norm")])) for row in map(lambda x: x.split(","), lines[1:])]
        told = self.run_program(sys.executable, str(ROOT / "python/example/train.py"), str(text), "--tiny", "--steps", "10",
                                "--batch", "2", "--warmup", "3", "--device", "cpu")  # fmt: skip
        got = [(float(a), float(b)) for a, b in re.findall(r"loss (\S+) norm (\S+)", told)]
        self.assertEqual(len(got), 10)
        for step, (own, due) in enumerate(zip(got, wanted)):
            for value, right in zip(own, due):
                self.assertLess(abs(value - right), 1e-5 * max(1.0, right), f"step {step + 1}: {own}, nsa-train {due}")
