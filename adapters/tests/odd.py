"""An adapter for the tests of the host: its window goes wrong, or tells something, as geometry.w numbers."""

import importlib.util
import sys

import torch


def describe():
    return {
        "name": "odd",
        "version": "1",
        "computes": ["compress", "attend_compressed", "attend_selected", "attend_window", "combine", "attention"],
        "device": ["cpu", "cuda"],
        "dtypes": ["fp64", "fp32", "bf16", "fp16"],
        "layouts": ["batched"],
        "gradients": True,
        "window": "w",
        "forced": {"first": 1, "last": 2},
        "ties": "lower",
        "importance": "paper",
        "shared_kv": True,
        "lse": None,
    }


def attend_window(q, k, v, *, geometry, cu_seqlens):
    return WRONG[geometry.w](q)


def raises(q):
    raise ValueError("one")


def refuses(q):
    raise NotImplementedError("not for me")


def leaves(q):
    sys.exit(7)


def talks(q):
    raise ValueError("x" * 100_000)


def has_no_text(q):
    raise NoText


class NoText(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def interrupts(q):
    raise KeyboardInterrupt("not by anybody's keyboard")


class Leaves(torch.Tensor):
    """Leaves the process when somebody looks at it."""

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), keywords=None):
        raise SystemExit(9)


class OutOfMemoryError(RuntimeError):
    """Called like torch's."""


def has_no_memory(q):
    raise OutOfMemoryError("CUDA out of memory")


WRONG = {
    1: raises,
    2: refuses,
    3: lambda q: (q, q, q),
    4: lambda q: "a text",
    5: lambda q: q.to(torch.complex64),
    6: lambda q: q.to("meta"),
    7: leaves,
    8: talks,
    9: has_no_text,
    10: lambda q: q[:, 1:],
    11: lambda q: q.to_sparse(),
    12: lambda q: (q, torch.zeros(q.shape[0], q.shape[2], q.shape[1])),
    13: has_no_memory,
    14: lambda q: q * torch.is_grad_enabled(),
    15: lambda q: q * (importlib.util.find_spec("arena") is None),
    16: interrupts,
    17: lambda q: q.as_subclass(Leaves),
}


def combine(gates, o_cmp, o_sel, o_win):
    """An echo: what comes as o_win goes back."""
    return o_win


def attend_selected(q, k, v, blocks, *, geometry, cu_seqlens):
    """Another for integers: fp64 holds every one of them."""
    return blocks.to(q.dtype)


def attend_compressed(q, k_cmp, v_cmp, *, geometry, cu_seqlens):
    return torch.rand(q.shape[:3] + v_cmp.shape[3:], dtype=q.dtype)


class Spoils(torch.autograd.Function):
    """Writes into its input when its gradient is asked for."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.saved_tensors[0].data.add_(1)
        return gradient


def compress(k, v, *, geometry, cu_seqlens):
    blocks = 1 + (k.shape[1] - geometry.l) // geometry.d
    return Spoils.apply(k)[:, :blocks], v[:, :blocks]


def attention(q, k, v, gates, *, geometry, cu_seqlens):
    """Raises in its backward pass, or leaves there."""
    return Broken.apply(q, geometry.w)


class Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, number):
        ctx.number = number
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if ctx.number in (7, 16):
            WRONG[ctx.number](gradient)
        raise ValueError("no way back")
