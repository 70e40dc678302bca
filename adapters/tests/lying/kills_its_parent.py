"""Ends the process that has asked it, so that nobody is left to tell of it."""

import importlib.util
import os
import signal
import time
from pathlib import Path

SPEC = importlib.util.spec_from_file_location("right", Path(__file__).resolve().parents[2] / "pytorch.py")
right = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(right)


def describe():
    return {**right.describe(), "name": "kills its parent"}


def attend_window(q, k, v, *, geometry, cu_seqlens):
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


right.attend_window = attend_window  # right.attend calls it too
globals().update({name: getattr(right, name) for name in right.describe()["computes"]})
