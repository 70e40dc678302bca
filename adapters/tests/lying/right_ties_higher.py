"""Right: of equal blocks it takes the higher, and it says so."""

import importlib.util
from pathlib import Path

SPEC = importlib.util.spec_from_file_location("liar", Path(__file__).with_name("ties_the_other_way.py"))
liar = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(liar)


def describe():
    claims = {"name": "right ties higher", "computes": ["select"], "gradients": False, "ties": "higher", "lse": None}
    return {**liar.describe(), **claims}


select = liar.select
