"""Claims that the lower of two equal blocks is chosen, and chooses the higher."""

import importlib.util
from pathlib import Path

import torch

SPEC = importlib.util.spec_from_file_location("right", Path(__file__).resolve().parents[2] / "pytorch.py")
right = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(right)


def describe():
    return {**right.describe(), "name": "ties the other way"}


def last_first(scores, **how):
    """Sorts from the other end, so that of equals the last stands first."""
    values, order = torch.sort(scores.flip(-1), **how)
    return values, scores.shape[-1] - 1 - order


class Torch:
    """What right.select takes for torch. It sorts scores with torch.sort, and nothing else."""

    def __getattr__(self, name):
        return last_first if name == "sort" else getattr(torch, name)


right.torch = Torch()
globals().update({name: getattr(right, name) for name in right.describe()["computes"]})
