"""Small problems for the tests, and what they are held against: plain PyTorch (adapters/pytorch.py)."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import torch

import nsa

ROOT = Path(__file__).resolve().parents[2]
_spec = importlib.util.spec_from_file_location("plain", ROOT / "adapters/pytorch.py")
plain = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(plain)

SMALL = nsa.Geometry(l=8, d=4, l_sel=16, n_sel=4, w=24)
GPU = torch.cuda.is_available()
NO_GPU = "there is no GPU here"
LONG = GPU or "NSA_PYTHON_LONG" in os.environ
TAKES_LONG = "it takes long: set NSA_PYTHON_LONG"


def tensors(S=96, B=2, Hq=4, G=2, Dk=16, Dv=24, dtype=torch.float64, device="cpu", grad=True, seed=0, geometry=SMALL):
    """q, three keys, three values, gates."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        values = torch.randn(*shape, generator=generator, dtype=torch.float64)
        return values.to(device=device, dtype=dtype).requires_grad_(grad)

    q, k, v = draw(B, S, Hq, Dk), tuple(draw(B, S, G, Dk) for _ in range(3)), tuple(draw(B, S, G, Dv) for _ in range(3))
    gates = draw(B, S, G, 3).detach().softmax(-1).requires_grad_(grad)
    return q, k, v, gates


def plainly(q, k, v, gates, geometry=SMALL, cu_seqlens=None, blocks=None):
    """The same attention by plain PyTorch."""
    k_cmp, v_cmp = plain.compress(k[0], v[0], geometry=geometry, cu_seqlens=cu_seqlens)
    layout = {"geometry": geometry, "cu_seqlens": cu_seqlens, "blocks": blocks}
    return plain.attend(q, k_cmp, v_cmp, k[1], v[1], k[2], v[2], gates, **layout)
