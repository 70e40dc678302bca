"""Claims that the token's own block and the one before it are always chosen, and forces its own alone."""

import importlib.util
from pathlib import Path

import torch

SPEC = importlib.util.spec_from_file_location("right", Path(__file__).resolve().parents[2] / "pytorch.py")
right = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(right)


def describe():
    own = {"name": "attention forgets the block before", "computes": ["attention"], "shared_kv": True, "lse": None}
    return {**right.describe(), **own}


def attention(q, k, v, gates, *, geometry, cu_seqlens):
    where = {"geometry": geometry, "cu_seqlens": cu_seqlens}
    k_cmp, v_cmp = right.compress(k, v, **where)
    blocks = right.select(q, k_cmp, **where)
    own = (torch.arange(q.shape[1]) // geometry.l_sel)[:, None, None]
    blocks = torch.where((blocks == own - 1) & (own > 1), 0, blocks).sort(-1).values  # the first one twice
    return right.attend(q, k_cmp, v_cmp, k, v, k, v, gates, blocks=blocks, **where)
