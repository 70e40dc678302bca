"""Returns a view of q for the window's output."""

import importlib.util
from pathlib import Path

SPEC = importlib.util.spec_from_file_location("right", Path(__file__).resolve().parents[2] / "pytorch.py")
right = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(right)


def describe():
    claims = {"computes": ["attend_window"], "lse": None, "limits": {"equal": [["d_k", "d_v"]]}}
    return {**right.describe(), "name": "returns views", **claims}


def attend_window(q, k, v, *, geometry, cu_seqlens):
    return q[..., : v.shape[3]]
