"""Claims a log-sum-exp to base e, and returns none."""

import importlib.util
from pathlib import Path

SPEC = importlib.util.spec_from_file_location("right", Path(__file__).resolve().parents[2] / "pytorch.py")
right = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(right)


def describe():
    own = {"name": "no lse", "computes": ["attend_window"]}
    return {**right.describe(), **own}


def attend_window(q, k, v, *, geometry, cu_seqlens):
    return right.attend_window(q, k, v, geometry=geometry, cu_seqlens=cu_seqlens)[0]
