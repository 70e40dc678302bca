"""A NaN in a gradient becomes 0 at the end of the pass back."""

import importlib.util
from pathlib import Path

import torch

SPEC = importlib.util.spec_from_file_location("right", Path(__file__).resolve().parents[2] / "pytorch.py")
right = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(right)

combined = right.combine


def describe():
    return {**right.describe(), "name": "hides nan in gradients"}


class Hides(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gates):
        return gates.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.nan_to_num()


def combine(gates, o_cmp, o_sel, o_win):
    return combined(Hides.apply(gates), o_cmp, o_sel, o_win)


right.combine = combine  # right.attend calls it too
globals().update({name: getattr(right, name) for name in right.describe()["computes"]})
