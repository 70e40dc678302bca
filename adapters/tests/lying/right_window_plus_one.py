"""Right: a token sees w + 1 tokens, and it says so."""

import importlib.util
import types
from pathlib import Path

SPEC = importlib.util.spec_from_file_location("right", Path(__file__).resolve().parents[2] / "pytorch.py")
right = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(right)

window = right.attend_window


def describe():
    return {**right.describe(), "name": "right window plus one", "computes": ["attend_window"], "window": "w+1"}


def attend_window(q, k, v, *, geometry, cu_seqlens):
    wider = types.SimpleNamespace(**{**vars(geometry), "w": geometry.w + 1})
    return window(q, k, v, geometry=wider, cu_seqlens=cu_seqlens)
