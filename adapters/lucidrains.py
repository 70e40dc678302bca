"""lucidrains (pip install native-sparse-attention-pytorch): what its module calls on q, k and v.

The module projects, turns, compresses by an MLP and adds a memory token inside, so that it cannot be fed with q, k
and v as a whole. Two parts can: its LocalAttention, which sees w tokens before the token and the token, and its Triton
kernel for selected blocks, which always sees the token's own block and works in fp16 whatever comes.
"""

import functools
import importlib.metadata

import torch
from native_sparse_attention_pytorch import SparseAttention


def describe():
    return {
        "name": "lucidrains native-sparse-attention-pytorch, parts",
        "version": importlib.metadata.version("native-sparse-attention-pytorch"),
        "computes": ["attend_selected", "attend_window"],
        "device": ["cpu", "cuda"],
        "dtypes": ["fp32", "bf16", "fp16"],
        "layouts": ["batched"],
        "gradients": True,
        "window": "w+1",
        "forced": None,
        "ties": None,
        "importance": None,
        "blocks": "own",  # which its kernel sees always
        "shared_kv": False,
        "lse": "e",
        "repeatable": False,
        "limits": {
            "heads_per_group": [1, 2, 4, 8, 16],
            "l_sel": [16, 32, 64, 128],
            "d_k": [16, 32, 64, 128],
            "equal": [["d_k", "d_v"]],
        },
    }


def attend_selected(q, k, v, blocks, *, geometry, cu_seqlens):
    if not q.is_cuda or q.dtype == torch.float32:
        raise NotImplementedError("its kernel runs on CUDA alone, in fp16")
    from native_sparse_attention_pytorch.triton_native_sparse_attention import native_sparse_attend

    own = (torch.arange(q.shape[1], device=q.device) // geometry.l_sel)[:, None, None]
    before, q, k, v = (x.transpose(1, 2).contiguous() for x in (blocks.masked_fill(blocks == own, -1), q, k, v))
    arguments = (geometry.l_sel, before.clamp(min=0).long(), before >= 0)
    o, lse = native_sparse_attend(q, k, v, *arguments, include_block_causal=True, return_lse=True)
    return o.transpose(1, 2), lse


def attend_window(q, k, v, *, geometry, cu_seqlens):
    window = _window(q.shape[3], geometry.w)
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
    return window(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)


@functools.cache
def _window(width, w):
    """The window as the module makes it for itself; the sizes of its other parts do not matter."""
    sizes = {"compress_block_size": 1, "compress_block_sliding_stride": 1, "selection_block_size": 1}
    module = SparseAttention(
        dim=1, dim_head=width, heads=1, sliding_window_size=w, num_selected_blocks=1, causal=True, **sizes
    )
    return module.sliding_window
