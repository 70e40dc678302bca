"""Describes itself by what is another in each process."""

import importlib.util
import os
from pathlib import Path

SPEC = importlib.util.spec_from_file_location("right", Path(__file__).resolve().parents[2] / "pytorch.py")
right = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(right)


def describe():
    return {**right.describe(), "name": "describes itself otherwise", "version": str(os.getpid())}


globals().update({name: getattr(right, name) for name in right.describe()["computes"]})
