"""The signatures of XunhaoLai/native-sparse-attention-triton: `compressed_attention` and `topk_sparse_attention`.

Rows of all sequences end to end, [total, heads, head_dim]. Their meaning is kept: the softmax scale 1/sqrt(head_dim),
block numbers from the start of each sequence, -1 for none. Head widths and group sizes are ours; block numbers come back as
int32, and a token that is given no block at all gets 0 (there NaN).
"""

from __future__ import annotations

from typing import Optional, Union

import torch
from torch import Tensor

from nsa import functional as F
from nsa.compat.fla import _LEAST_BLOCKS, _ascending, _own_scale


def compressed_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kernel_size: int,
    kernel_stride: int,
    block_size: int,
    topk: int,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: Optional[int] = None,
    max_seqlen_k: Optional[int] = None,
    sm_scale: Optional[float] = None,
    init_blocks: int = 1,
    local_blocks: int = 2,
    parallel_topk_compute: Union[str, bool] = "auto",
) -> tuple[Tensor, Optional[Tensor]]:
    """(o [total_q, heads, D], topk_idx [kv_heads, total_q, topk], or None where topk <= 0).

    q [total_q, heads, D]; k, v [total_k, kv_heads, D] compressed (kernel_size tokens every kernel_stride);
    cu_seqlens_k counts compressed blocks. max_seqlen_q, max_seqlen_k and parallel_topk_compute change nothing.

    Refused: a scale that is not 1/sqrt(D); other forced blocks than 1 at the start and 2 at the end; cu_seqlens_k that
    is not what kernel_size and kernel_stride make of cu_seqlens_q.
    """
    _own_scale("sm_scale", sm_scale, q)
    if topk > 0 and (init_blocks, local_blocks) != (1, 2):
        raise NotImplementedError(
            f"init_blocks, local_blocks: are {init_blocks}, {local_blocks}; allowed: 1, 2, which are ours always"
        )
    if 0 < topk < _LEAST_BLOCKS:
        raise ValueError(f"topk: is {topk}; allowed: 0, or at least {_LEAST_BLOCKS}: the forced blocks are among them")
    bounds = F._packing(cu_seqlens_q)
    geometry = F.Geometry(kernel_size, kernel_stride, block_size, max(topk, _LEAST_BLOCKS), 1)
    own = ((bounds.diff() - kernel_size) // kernel_stride + 1).clamp(min=0)
    own = torch.nn.functional.pad(own.cumsum(0), (1, 0)).int()
    given = F._packing(cu_seqlens_k)
    if not torch.equal(own, given):
        raise ValueError(f"cu_seqlens_k: is {given.tolist()}; allowed: {own.tolist()}, the blocks of cu_seqlens_q")
    rows = [x.unsqueeze(0) for x in _rows(q=q, k=k, v=v)]
    last = {"geometry": geometry, "cu_seqlens": bounds}
    o = F.attend_compressed(*rows, **last)[0]
    if topk <= 0:
        return o, None
    return o, F.select(rows[0], rows[1], **last)[0].transpose(0, 1)


def topk_sparse_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    topk_idx: Tensor,
    block_size: int,
    cu_seqlens: Tensor,
    softmax_scale: Optional[float] = None,
) -> Tensor:
    """o [total, heads, D]. q [total, heads, D], k, v [total, kv_heads, D], topk_idx [kv_heads, total, topk], in any
    order. Refused: a scale that is not 1/sqrt(D)."""
    _own_scale("softmax_scale", softmax_scale, q)
    rows = [x.unsqueeze(0) for x in _rows(q=q, k=k, v=v)]
    if topk_idx.dim() != 3 or topk_idx.shape[:2] != (k.shape[1], q.shape[0]):
        raise ValueError(
            f"topk_idx: is {F._describe(topk_idx)}; allowed: [kv_heads, total, topk], here [{k.shape[1]}, {q.shape[0]}, topk]"
        )
    width = max(topk_idx.shape[2], _LEAST_BLOCKS)
    blocks = _ascending(topk_idx, topk_idx.shape[2], width).transpose(0, 1).unsqueeze(0)
    geometry = F.Geometry(block_size, block_size, block_size, width, 1)
    return F.attend_selected(*rows, blocks, geometry=geometry, cu_seqlens=F._packing(cu_seqlens))[0]


def _rows(**named: Tensor):
    for name, x in named.items():
        if not isinstance(x, Tensor) or x.dim() != 3:
            raise ValueError(f"{name}: is {F._describe(x)}; allowed: [total, heads, head_dim]")
        yield x
