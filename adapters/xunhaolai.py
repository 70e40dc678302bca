"""XunhaoLai/native-sparse-attention-triton, from a checkout that NSA_ADAPTER_SOURCE names. CUDA, bf16 and fp16.

Its functions know packed rows alone: a batch becomes as many documents. The log-sum-exp stays inside. The window is
flash-attn's, called by its module with one token more than w, and no function of its own.
"""

import os
import sys

import torch

SOURCE = os.environ.get("NSA_ADAPTER_SOURCE", "")
if not os.path.isdir(os.path.join(SOURCE, "native_sparse_attention", "ops")):
    raise ImportError("NSA_ADAPTER_SOURCE must name a checkout of XunhaoLai/native-sparse-attention-triton")
sys.path.insert(0, SOURCE)

from native_sparse_attention.ops import avgpool_compress, compressed_attention, topk_sparse_attention  # noqa: E402


def describe():
    return {
        "name": "XunhaoLai native-sparse-attention-triton",
        "version": "checkout",
        "computes": ["compress", "attend_compressed", "select", "attend_selected"],
        "device": ["cuda"],
        "dtypes": ["bf16", "fp16"],
        "layouts": ["batched", "packed"],
        "gradients": True,
        "window": None,
        "forced": {"first": 1, "last": 2},
        "ties": "any",
        "importance": "paper",
        "blocks": "own",  # it divides by the weights of a row: a token that is given no block at all gets NaN
        "shared_kv": False,
        "lse": None,
        "repeatable": False,  # compress adds its gradients with atomics
        "limits": {
            "l": [16, 32, 64, 128],
            "l_sel": [32, 64, 128, 256],
            "d_k": [32, 64, 128],
            "equal": [["d_k", "d_v"]],
        },
    }


def compress(k, v, *, geometry, cu_seqlens):
    bounds = _bounds(cu_seqlens, k)
    means = (avgpool_compress(x.flatten(0, 1), None, bounds, geometry.l, geometry.d)[0] for x in (k, v))
    return tuple(mean.unflatten(0, (k.shape[0], mean.shape[0] // k.shape[0])) for mean in means)


def attend_compressed(q, k_cmp, v_cmp, *, geometry, cu_seqlens):
    return _compressed(q, k_cmp, v_cmp, geometry, cu_seqlens, topk=0)[0].view(*q.shape[:3], -1)


def select(q, k_cmp, *, geometry, cu_seqlens):
    blocks = _compressed(q, k_cmp, k_cmp, geometry, cu_seqlens, topk=geometry.n_sel)[1]  # [G,B*S,n or less]
    blocks = torch.nn.functional.pad(blocks, (0, geometry.n_sel - blocks.shape[2]), value=-1)
    return blocks.transpose(0, 1).unflatten(0, q.shape[:2])


def attend_selected(q, k, v, blocks, *, geometry, cu_seqlens):
    table = blocks.flatten(0, 1).transpose(0, 1).contiguous()
    rows = (x.flatten(0, 1) for x in (q, k, v))
    return topk_sparse_attention(*rows, table, geometry.l_sel, _bounds(cu_seqlens, q)).view(*q.shape[:3], -1)


def _compressed(q, k_cmp, v_cmp, geometry, cu_seqlens, topk):
    bounds = _bounds(cu_seqlens, q)
    blocks = ((bounds.diff() - geometry.l) // geometry.d + 1).clamp(min=0)
    bounds_cmp = torch.nn.functional.pad(blocks.cumsum(0), (1, 0)).int()
    rows = (x.flatten(0, 1) for x in (q, k_cmp, v_cmp))
    sizes = (geometry.l, geometry.d, geometry.l_sel, topk)
    return compressed_attention(*rows, *sizes, bounds, bounds_cmp, init_blocks=1, local_blocks=2)


def _bounds(cu_seqlens, x):
    if cu_seqlens is None:
        return torch.arange(x.shape[0] + 1, dtype=torch.int32, device=x.device) * x.shape[1]
    return cu_seqlens.to(x.device)
