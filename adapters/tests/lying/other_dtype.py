"""Returns fp32 whatever comes."""

import importlib.util
from pathlib import Path

import torch

SPEC = importlib.util.spec_from_file_location("right", Path(__file__).resolve().parents[2] / "pytorch.py")
right = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(right)

window = right.attend_window


def describe():
    return {**right.describe(), "name": "other dtype"}


def attend_window(q, k, v, *, geometry, cu_seqlens):
    o, lse = window(q, k, v, geometry=geometry, cu_seqlens=cu_seqlens)
    return o.float() if o.dtype != torch.float32 else o.double(), lse


right.attend_window = attend_window  # right.attend calls it too
globals().update({name: getattr(right, name) for name in right.describe()["computes"]})
