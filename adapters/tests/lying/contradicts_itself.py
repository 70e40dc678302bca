"""Describes itself wrongly in six ways."""


def describe():
    return {
        "name": "contradicts itself",
        "version": "1",
        "computes": ["select", "attention"],
        "device": ["tpu"],
        "dtypes": [],
        "layouts": ["batched"],
        "gradients": True,
        "window": "w",
        "forced": None,
        "ties": "lower",
        "importance": "paper",
        "shared_kv": False,
        "lse": "e",
    }


def attention(q, k, v, gates, *, geometry, cu_seqlens):
    return q
