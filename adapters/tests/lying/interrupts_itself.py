"""Raises what Python raises for an interrupt, though nobody has sent one."""

import importlib.util
from pathlib import Path

SPEC = importlib.util.spec_from_file_location("right", Path(__file__).resolve().parents[2] / "pytorch.py")
right = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(right)


def describe():
    return {**right.describe(), "name": "interrupts itself"}


def attend_window(q, k, v, *, geometry, cu_seqlens):
    raise KeyboardInterrupt("no signal came")


right.attend_window = attend_window  # right.attend calls it too
globals().update({name: getattr(right, name) for name in right.describe()["computes"]})
