"""Keeps every input for ever."""

import importlib.util
from pathlib import Path

SPEC = importlib.util.spec_from_file_location("right", Path(__file__).resolve().parents[2] / "pytorch.py")
right = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(right)

window = right.attend_window
kept = []


def describe():
    return {**right.describe(), "name": "leaks"}


def attend_window(q, k, v, *, geometry, cu_seqlens):
    kept.append((q, k, v))
    return window(q, k, v, geometry=geometry, cu_seqlens=cu_seqlens)


right.attend_window = attend_window  # right.attend calls it too
globals().update({name: getattr(right, name) for name in right.describe()["computes"]})
