"""host.py --check over every adapter that is shipped, and over those that lie."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import subprocess
import sys
import unittest
from pathlib import Path

from client import ADAPTERS, HOST, LIES
from package import adapter, check

SOUND, MISTAKEN, UNLOADABLE = 0, 2, 4


def checked(path: Path) -> tuple[int, str]:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = check.main(str(path))
    return code, printed.getvalue()


class Shipped(unittest.TestCase):
    def test_plain_pytorch_and_the_skeleton_are_sound(self):
        for name in ("pytorch", "skeleton"):
            code, printed = checked(ADAPTERS / f"{name}.py")
            self.assertEqual(code, SOUND, printed)
            self.assertIn("computes     attend", printed)
            self.assertNotIn("not tried", printed)

    def test_the_others_are_sound_or_say_what_they_miss(self):
        for name, needs in (
            ("fla", "fla"),
            ("lucidrains", "native_sparse_attention_pytorch"),
            ("xunhaolai", "NSA_ADAPTER_SOURCE"),
            ("mdy666", "NSA_ADAPTER_SOURCE"),
            ("own", "nsa"),
        ):
            with self.subTest(adapter=name):
                code, printed = checked(ADAPTERS / f"{name}.py")
                there = os.environ.get(needs) if needs.isupper() else importlib.util.find_spec(needs)
                if there and code == SOUND:
                    self.assertIn("computes ", printed)
                else:
                    self.assertEqual(code, UNLOADABLE, printed)
                    first = printed.splitlines()[0]
                    self.assertTrue(first.startswith(f"{ADAPTERS / name}.py: cannot be loaded: "), first)
                    self.assertIn(needs, first)


class Lies(unittest.TestCase):
    def test_every_liar_says_nothing_wrong_of_itself(self):
        """But two: a judge has to look at what they compute."""
        for path in sorted(LIES.glob("*.py")):
            if path.stem not in ("import_error", "contradicts_itself"):
                self.assertEqual(adapter.Adapter(str(path)).mistakes, [], path.stem)


class Checked(unittest.TestCase):
    def test_mistakes_are_lines_with_a_place(self):
        code, printed = checked(LIES / "contradicts_itself.py")
        self.assertEqual(code, MISTAKEN)
        self.assertEqual(len(printed.splitlines()), 6)
        for line in printed.splitlines():
            self.assertRegex(line, r"contradicts_itself\.py:4: \w+ = .+: .+")

    def test_what_a_first_call_shows(self):
        for name, line in (
            ("other_dtype", r"other_dtype\.py:\d+: attend_window\.o = fp64: allowed is fp32"),
            ("wrong_shape", r"wrong_shape\.py:\d+: attend_window\.o = \[2, 4, 37, 8\]: allowed is \[2, 37, 4, 8\]"),
            ("writes_into_q", r"writes_into_q\.py:\d+: attend_window = wrote into q: inputs stay as they come"),
            ("import_error", r"cannot be loaded: ModuleNotFoundError: No module named 'a_package_that_nobody_has'"),
        ):
            code, printed = checked(LIES / f"{name}.py")
            self.assertEqual(code, UNLOADABLE if name == "import_error" else MISTAKEN)
            self.assertRegex(printed, line)

    def test_as_a_program(self):
        command = [sys.executable, str(HOST), "--check"]
        for path, code in ((ADAPTERS / "skeleton.py", SOUND), (ADAPTERS / "no_such_file.py", UNLOADABLE)):
            done = subprocess.run([*command, str(path)], capture_output=True, text=True)
            self.assertEqual(done.returncode, code, done.stdout + done.stderr)
            self.assertIn("skeleton" if code == SOUND else "FileNotFoundError", done.stdout)
