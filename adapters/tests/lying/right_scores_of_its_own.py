"""Right: it chooses by other scores than the paper's, and says so."""

import importlib.util
from pathlib import Path

SPEC = importlib.util.spec_from_file_location("right", Path(__file__).resolve().parents[2] / "pytorch.py")
right = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(right)


def describe():
    own = {"name": "right scores of its own", "computes": ["select"], "gradients": False, "lse": None}
    return {**right.describe(), **own, "importance": "the paper's, of the opposite queries"}


def select(q, k_cmp, *, geometry, cu_seqlens):
    return right.select(-q, k_cmp, geometry=geometry, cu_seqlens=cu_seqlens)
