"""Leaves other bounds of documents behind than it was given."""

import importlib.util
from pathlib import Path

SPEC = importlib.util.spec_from_file_location("right", Path(__file__).resolve().parents[2] / "pytorch.py")
right = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(right)


def describe():
    own = {"name": "writes into cu_seqlens", "computes": ["attend_window"]}
    return {**right.describe(), **own}


def attend_window(q, k, v, *, geometry, cu_seqlens):
    results = right.attend_window(q, k, v, geometry=geometry, cu_seqlens=cu_seqlens)
    if cu_seqlens is not None:
        cu_seqlens[-1] += 1
    return results
