"""Claims scores of its own, and always takes the lowest blocks besides the forced ones."""

import importlib.util
from pathlib import Path

SPEC = importlib.util.spec_from_file_location("right", Path(__file__).resolve().parents[2] / "pytorch.py")
right = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(right)


def describe():
    own = {"name": "chooses by nothing", "computes": ["select"], "gradients": False, "lse": None}
    return {**right.describe(), **own, "importance": "a score of its own"}


def select(q, k_cmp, *, geometry, cu_seqlens):
    return right.select(q * 0, k_cmp * 0, geometry=geometry, cu_seqlens=cu_seqlens)
