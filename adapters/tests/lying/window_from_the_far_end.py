"""What the window lacks before a document's start it takes from the document's end."""

import importlib.util
from pathlib import Path

import torch

SPEC = importlib.util.spec_from_file_location("right", Path(__file__).resolve().parents[2] / "pytorch.py")
right = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(right)


def describe():
    return {**right.describe(), "name": "window from the far end"}


def attend_window(q, k, v, *, geometry, cu_seqlens):
    parts = []
    for tokens, _ in right._documents(geometry, cu_seqlens, q.shape[1]):
        token = torch.arange(tokens.stop - tokens.start, device=q.device)
        visible = (token[:, None] - token) % len(token) < geometry.w  # an index below 0 counts from the end
        parts.append(right._attend(q[:, tokens], k[:, tokens], v[:, tokens], visible))
    return right._joined(parts)


right.attend_window = attend_window  # right.attend calls it too
globals().update({name: getattr(right, name) for name in right.describe()["computes"]})
