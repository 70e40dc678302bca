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
from nsa.arguments import MOST_BLOCKS
from nsa.compat.fla import _LEAST_BLOCKS, _ascending, _own_scale, _size


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
    rows = _rows(q=q, k=k, v=v)
    _own_scale("sm_scale", sm_scale, q)
    if type(topk) is not int:
        raise TypeError(f"topk: is {topk!r}; allowed: a whole number")
    for name, size in {"kernel_size": kernel_size, "kernel_stride": kernel_stride, "block_size": block_size}.items():
        _size(name, size, 1)
    if kernel_size % kernel_stride or block_size % kernel_stride or kernel_size > block_size:
        raise ValueError(
            f"kernel_size, kernel_stride, block_size: are {kernel_size}, {kernel_stride}, {block_size}; allowed: "
            "kernel_stride divides the other two, kernel_size <= block_size"
        )
    if topk > 0 and (init_blocks, local_blocks) != (1, 2):
        raise NotImplementedError(
            f"init_blocks, local_blocks: are {init_blocks}, {local_blocks}; allowed: 1, 2, which are ours always"
        )
    if 0 < topk < _LEAST_BLOCKS or topk > MOST_BLOCKS:
        raise ValueError(f"topk: is {topk}; allowed: 0, or {_LEAST_BLOCKS} to {MOST_BLOCKS}: the forced blocks are among them")
    bounds = _bounds("cu_seqlens_q", cu_seqlens_q, q)
    geometry = F.Geometry(kernel_size, kernel_stride, block_size, max(topk, _LEAST_BLOCKS), 1)
    own = ((bounds.diff() - kernel_size) // kernel_stride + 1).clamp(min=0)
    own = torch.nn.functional.pad(own.cumsum(0), (1, 0)).int()
    F._whole_numbers("cu_seqlens_k", cu_seqlens_k)
    given = F._packing(cu_seqlens_k)
    if not torch.equal(own, given):
        raise ValueError(f"cu_seqlens_k: is {given.tolist()}; allowed: {own.tolist()}, the blocks of cu_seqlens_q")
    if k.shape[0] != own[-1]:
        raise ValueError(f"k: is {F._describe(k)}; allowed: [{own[-1]}, kv_heads, head_dim], the blocks of cu_seqlens_k")
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
    rows = _rows(q=q, k=k, v=v)
    _own_scale("softmax_scale", softmax_scale, q)
    _size("block_size", block_size, 1)
    if k.shape[0] != q.shape[0]:
        raise ValueError(f"k: is {F._describe(k)}; allowed: [{q.shape[0]}, kv_heads, head_dim], the rows of q")
    F._whole_numbers("topk_idx", topk_idx)
    if topk_idx.dim() != 3 or topk_idx.shape[:2] != (k.shape[1], q.shape[0]) or topk_idx.device != q.device:
        raise ValueError(
            f"topk_idx: is {F._describe(topk_idx)}; allowed: [kv_heads, total, topk] on {q.device}, here "
            f"[{k.shape[1]}, {q.shape[0]}, topk]"
        )
    width = max(topk_idx.shape[2], _LEAST_BLOCKS)
    blocks = _ascending(topk_idx, topk_idx.shape[2], width).transpose(0, 1).unsqueeze(0)
    geometry = F.Geometry(block_size, block_size, block_size, width, 1)
    bounds = _bounds("cu_seqlens", cu_seqlens, q)
    try:
        return F.attend_selected(*rows, blocks, geometry=geometry, cu_seqlens=bounds)[0]
    except ValueError as error:
        raise F.said(error, "topk_sparse_attention", blocks="topk_idx") from None


def _rows(**named: Tensor) -> list[Tensor]:
    """q, k and v with a batch of one; what our functions would refuse is said of what the caller has."""
    F._tensors("q k v", tuple(named.values()))
    q, k, v = named.values()
    for name, x in named.items():
        if x.dim() != 3 or x.shape[1] < 1 or x.shape[2] < 1:
            raise ValueError(f"{name}: is {F._describe(x)}; allowed: [total, heads, head_dim]")
        if x.dtype not in F.FLOATING:
            raise ValueError(f"{name}: is {F._describe(x)}; allowed: {F._FLOATING}")
        if (x.dtype != q.dtype and not F._casts(q)) or x.device != q.device:
            raise ValueError(f"{name}: is {F._describe(x)}; allowed: dtype and device of q, which is {F._describe(q)}")
    if k.shape[2] != q.shape[2]:
        raise ValueError(f"k: is {F._describe(k)}; allowed: head_dim {q.shape[2]}, as q has")
    if q.shape[1] % k.shape[1]:
        raise ValueError(f"q: is {F._describe(q)}; allowed: heads a multiple of the {k.shape[1]} kv_heads")
    if v.shape[:2] != k.shape[:2]:
        raise ValueError(f"v: is {F._describe(v)}; allowed: rows and kv_heads of k, which is {F._describe(k)}")
    return [x.unsqueeze(0) for x in (q, k, v)]


def _bounds(name: str, cu_seqlens: Tensor, q: Tensor) -> Tensor:
    F._whole_numbers(name, cu_seqlens)
    bounds = F._packing(cu_seqlens)
    sound = bounds.dim() == 1 and bounds.numel() >= 2 and bounds[0] == 0 and bool((bounds.diff() >= 0).all())
    if not sound or bounds[-1] != q.shape[0]:
        raise ValueError(
            f"{name}: is {bounds.tolist()}; allowed: [sequences + 1] from 0 to the {q.shape[0]} rows of q, none below the one before"
        )
    return bounds
