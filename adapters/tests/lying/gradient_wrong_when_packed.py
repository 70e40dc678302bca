"""Claims gradients of packed batches: there those of v are half as large again."""

import importlib.util
from pathlib import Path

SPEC = importlib.util.spec_from_file_location("right", Path(__file__).resolve().parents[2] / "pytorch.py")
right = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(right)


def describe():
    own = {"name": "gradient wrong when packed", "computes": ["attend_window"]}
    return {**right.describe(), **own}


def attend_window(q, k, v, *, geometry, cu_seqlens):
    if cu_seqlens is not None:
        v = v * 1.5 - 0.5 * v.detach()
    return right.attend_window(q, k, v, geometry=geometry, cu_seqlens=cu_seqlens)
