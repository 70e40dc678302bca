"""Claims to be repeatable, and every other call has other last bits, whatever the seed."""

import importlib.util
import itertools
from pathlib import Path

import torch

SPEC = importlib.util.spec_from_file_location("right", Path(__file__).resolve().parents[2] / "pytorch.py")
right = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(right)

window = right.attend_window
calls = itertools.count(1)


def describe():
    return {**right.describe(), "name": "other bits each time"}


def attend_window(q, k, v, *, geometry, cu_seqlens):
    o, lse = window(q, k, v, geometry=geometry, cu_seqlens=cu_seqlens)
    return o * (1 + next(calls) % 2 * 2 * torch.finfo(o.dtype).eps), lse


right.attend_window = attend_window  # right.attend calls it too
globals().update({name: getattr(right, name) for name in right.describe()["computes"]})
