"""A NaN in what comes back becomes 0, so that a training that has diverged looks well."""

import importlib.util
from pathlib import Path

import torch

SPEC = importlib.util.spec_from_file_location("right", Path(__file__).resolve().parents[2] / "pytorch.py")
right = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(right)

window = right.attend_window


def describe():
    return {**right.describe(), "name": "hides nan that comes back"}


class Hides(torch.autograd.Function):
    @staticmethod
    def forward(ctx, o):
        return o.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.nan_to_num()


def attend_window(q, k, v, *, geometry, cu_seqlens):
    o, lse = window(q, k, v, geometry=geometry, cu_seqlens=cu_seqlens)
    return Hides.apply(o), lse


right.attend_window = attend_window  # right.attend calls it too
globals().update({name: getattr(right, name) for name in right.describe()["computes"]})
