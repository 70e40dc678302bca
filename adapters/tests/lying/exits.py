"""Ends the process with the exit code 3."""

import importlib.util
import os
from pathlib import Path

SPEC = importlib.util.spec_from_file_location("right", Path(__file__).resolve().parents[2] / "pytorch.py")
right = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(right)


def describe():
    return {**right.describe(), "name": "exits"}


def attend_window(q, k, v, *, geometry, cu_seqlens):
    os._exit(3)


right.attend_window = attend_window  # right.attend calls it too
globals().update({name: getattr(right, name) for name in right.describe()["computes"]})
