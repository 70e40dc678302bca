"""Takes a packed row for one document where it attends."""

import importlib.util
from pathlib import Path

SPEC = importlib.util.spec_from_file_location("right", Path(__file__).resolve().parents[2] / "pytorch.py")
right = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(right)

selected, window = right.attend_selected, right.attend_window


def describe():
    return {**right.describe(), "name": "ignores documents"}


def attend_selected(q, k, v, blocks, *, geometry, cu_seqlens):
    return selected(q, k, v, blocks, geometry=geometry, cu_seqlens=None)


def attend_window(q, k, v, *, geometry, cu_seqlens):
    return window(q, k, v, geometry=geometry, cu_seqlens=None)


right.attend_selected = attend_selected  # right.attend calls it too
right.attend_window = attend_window
globals().update({name: getattr(right, name) for name in right.describe()["computes"]})
