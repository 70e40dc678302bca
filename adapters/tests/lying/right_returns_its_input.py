"""Right: in a window of one token the output is v, and it returns v itself."""

import importlib.util
from pathlib import Path

SPEC = importlib.util.spec_from_file_location("right", Path(__file__).resolve().parents[2] / "pytorch.py")
right = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(right)


def describe():
    claims = {"computes": ["attend_window"], "lse": None, "limits": {"w": 1, "heads_per_group": 1}}
    return {**right.describe(), "name": "right returns its input", **claims}


def attend_window(q, k, v, *, geometry, cu_seqlens):
    return v
