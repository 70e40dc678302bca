"""Adds the branches without their gates."""

import importlib.util
from pathlib import Path

import torch

SPEC = importlib.util.spec_from_file_location("right", Path(__file__).resolve().parents[2] / "pytorch.py")
right = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(right)

summed = right.combine


def describe():
    return {**right.describe(), "name": "ignores gates"}


def combine(gates, o_cmp, o_sel, o_win):
    return summed(torch.ones_like(gates), o_cmp, o_sel, o_win)


right.combine = combine  # right.attend calls it too
globals().update({name: getattr(right, name) for name in right.describe()["computes"]})
