"""Starts another program and never comes back."""

import importlib.util
import subprocess
import time
from pathlib import Path

SPEC = importlib.util.spec_from_file_location("right", Path(__file__).resolve().parents[2] / "pytorch.py")
right = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(right)


def describe():
    return {**right.describe(), "name": "starts a sleeper"}


def attend_window(q, k, v, *, geometry, cu_seqlens):
    subprocess.Popen(["sleep", "1000"])
    while True:
        time.sleep(3600)


right.attend_window = attend_window  # right.attend calls it too
globals().update({name: getattr(right, name) for name in right.describe()["computes"]})
