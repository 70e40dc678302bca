"""Writes 100 MB to stdout before it answers."""

import importlib.util
from pathlib import Path

SPEC = importlib.util.spec_from_file_location("right", Path(__file__).resolve().parents[2] / "pytorch.py")
right = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(right)

window = right.attend_window


def describe():
    return {**right.describe(), "name": "floods stdout"}


def attend_window(q, k, v, *, geometry, cu_seqlens):
    for _ in range(100):
        print("x" * (1 << 20))
    return window(q, k, v, geometry=geometry, cu_seqlens=cu_seqlens)


right.attend_window = attend_window  # right.attend calls it too
globals().update({name: getattr(right, name) for name in right.describe()["computes"]})
