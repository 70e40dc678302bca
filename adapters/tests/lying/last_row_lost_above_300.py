"""Claims every length: above 300 tokens the last row is lost."""

import importlib.util
from pathlib import Path

import torch

SPEC = importlib.util.spec_from_file_location("right", Path(__file__).resolve().parents[2] / "pytorch.py")
right = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(right)


def describe():
    own = {"name": "last row lost above 300", "computes": ["attend_window"]}
    return {**right.describe(), **own}


def attend_window(q, k, v, *, geometry, cu_seqlens):
    o, lse = right.attend_window(q, k, v, geometry=geometry, cu_seqlens=cu_seqlens)
    return (torch.cat([o[:, :-1], 0 * o[:, -1:]], 1) if q.shape[1] > 300 else o), lse
