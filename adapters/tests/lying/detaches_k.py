"""No gradient reaches the keys of the selected branch."""

import importlib.util
from pathlib import Path

SPEC = importlib.util.spec_from_file_location("right", Path(__file__).resolve().parents[2] / "pytorch.py")
right = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(right)

selected = right.attend_selected


def describe():
    return {**right.describe(), "name": "detaches k"}


def attend_selected(q, k, v, blocks, *, geometry, cu_seqlens):
    return selected(q, k.detach(), v, blocks, geometry=geometry, cu_seqlens=cu_seqlens)


right.attend_selected = attend_selected  # right.attend calls it too
globals().update({name: getattr(right, name) for name in right.describe()["computes"]})
