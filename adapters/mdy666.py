"""mdy666/Scalable-Flash-Native-Sparse-Attention, from a checkout that NSA_ADAPTER_SOURCE names. CUDA, bf16 and fp16.

flash_nsa looks for the GPU when it is imported and keeps all sizes in a class: a backward pass must follow its own
forward pass, before the next one. Its functions know packed rows alone: a batch becomes as many documents. Its window
is flash-attn's with one token more than w. Its choice rounds scores to fp16 (their cubes for l, d, l' = 32, 16, 64).
Its gates are logits, one for every query head: those that come are turned back, so that 0 and 1 have no gradient.
"""

import os
import sys

import torch

SOURCE = os.environ.get("NSA_ADAPTER_SOURCE", "")
if not os.path.isdir(os.path.join(SOURCE, "flash_nsa")):
    raise ImportError("NSA_ADAPTER_SOURCE must name a checkout of mdy666/Scalable-Flash-Native-Sparse-Attention")
sys.path.insert(0, SOURCE)


def describe():
    return {
        "name": "mdy666 flash_nsa",
        "version": "checkout",
        "computes": ["compress", "attend_compressed", "select", "attend_selected", "attend_window", "attention"],
        "device": ["cuda"],
        "dtypes": ["bf16", "fp16"],
        "layouts": ["batched", "packed"],
        "gradients": True,
        "window": "w+1",
        "forced": {"first": 1, "last": 2},
        "ties": "any",
        "importance": "paper",
        "blocks": "own",  # it divides by the weights of a row: a token that is given no block at all gets NaN
        "shared_kv": True,
        "lse": "2",
        "repeatable": False,  # gradients of k and v are added with atomics
        "limits": {
            "l": [16, 32, 64, 128],
            "d": [8, 16, 32, 64, 128],
            "l_sel": [32, 64, 128],
            "d_k": [64, 128],
            "equal": [["d_k", "d_v"]],
        },
    }


def compress(k, v, *, geometry, cu_seqlens):
    nsa = _told(geometry, cu_seqlens, k)
    means = (nsa.mean_pooling(x.flatten(0, 1)) for x in (k, v))
    return tuple(mean.unflatten(0, (k.shape[0], mean.shape[0] // k.shape[0])) for mean in means)


def attend_compressed(q, k_cmp, v_cmp, *, geometry, cu_seqlens):
    nsa = _told(geometry, cu_seqlens, q)
    o, lse = nsa.compress_attn(*(x.flatten(0, 1) for x in (q, k_cmp, v_cmp)))
    bounds = nsa.NSAHelper.x_cu_seqlens.long()
    position = torch.arange(lse.shape[1], device=q.device) - bounds[:-1].repeat_interleave(bounds.diff())
    lse = lse.masked_fill(position < geometry.l - 1, -torch.inf)  # it writes 0 where nothing is seen
    return o.view(*q.shape[:3], -1), lse.unflatten(1, q.shape[:2]).transpose(0, 1)


def select(q, k_cmp, *, geometry, cu_seqlens):
    nsa = _told(geometry, cu_seqlens, q)
    rows, keys = q.flatten(0, 1), k_cmp.flatten(0, 1)
    _, lse = nsa.compress_attn(rows, keys, keys)
    blocks, _ = nsa.slc_topk_indices(rows, keys, lse, maybe_efficient_version=True)  # [G,B*S,n]
    blocks = blocks.sort(-1).values.masked_fill(blocks.sort(-1).values >= nsa.NSAHelper.k_maxlen, -1)
    return blocks.transpose(0, 1).unflatten(0, q.shape[:2])


def attend_selected(q, k, v, blocks, *, geometry, cu_seqlens):
    nsa = _told(geometry, cu_seqlens, q)
    table = blocks.masked_fill(blocks < 0, nsa.NSAHelper.k_maxlen).flatten(0, 1).transpose(0, 1).contiguous()
    return nsa.select_attn(*(x.flatten(0, 1) for x in (q, k, v)), table).view(*q.shape[:3], -1)


def attend_window(q, k, v, *, geometry, cu_seqlens):
    nsa = _told(geometry, cu_seqlens, q)
    return nsa.swa_varlen_func(*(x.flatten(0, 1) for x in (q, k, v))).view(*q.shape[:3], -1)


def attention(q, k, v, gates, *, geometry, cu_seqlens):
    nsa = _told(geometry, cu_seqlens, q)
    sizes = {"head_dim": q.shape[3], "num_heads": q.shape[2], "num_kv_heads": k.shape[2], "kernel_size": geometry.l}
    sizes.update(stride=geometry.d, block_size=geometry.l_sel, top_n=geometry.n_sel, window_size=geometry.w)
    logits = torch.logit(gates.float()).repeat_interleave(q.shape[2] // k.shape[2], 2)
    rows = (x.flatten(0, 1) for x in (q, k, v, logits))
    return nsa.HFNSACore(nsa.NSAConfig(**sizes))(*rows, nsa.NSAHelper.x_cu_seqlens).view(*q.shape[:3], -1)


def _told(geometry, cu_seqlens, x):
    """The library with the sizes of this call. Forgetting the old ones makes it count its blocks anew."""
    import flash_nsa

    helper = flash_nsa.NSAHelper
    helper.set_hyperparameters(geometry.l, geometry.d, geometry.l_sel, geometry.w, geometry.n_sel, 1, 2)
    helper.x_cu_seqlens = None
    if cu_seqlens is None:
        cu_seqlens = torch.arange(x.shape[0] + 1, dtype=torch.int32) * x.shape[1]
    helper.init_cu_seqlens(cu_seqlens.to(x.device))
    return flash_nsa
