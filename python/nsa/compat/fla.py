"""The signature of flash-linear-attention (fla.ops.nsa): `parallel_nsa`.

Its meaning is kept: one K and V for all branches, compression and selection in blocks of `block_size` that do not
overlap, gates of every query head by itself, no log-sum-exp, int64 or int32 indices in any order. Group sizes and
widths are ours, not its powers of two from 16 on.
"""

from __future__ import annotations

import math
from typing import Optional, Union

import torch
from torch import Tensor

from nsa import functional as F
from nsa.arguments import MOST_BLOCKS, MOST_TOKENS, check_real

_LEAST_BLOCKS = 3  # the first, the token's own, the one before


def parallel_nsa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g_cmp: Optional[Tensor] = None,
    g_slc: Optional[Tensor] = None,
    g_swa: Optional[Tensor] = None,
    block_indices: Optional[Tensor] = None,
    block_counts: Union[Tensor, int] = 16,
    block_size: int = 64,
    window_size: int = 0,
    scale: Optional[float] = None,
    cu_seqlens: Optional[Tensor] = None,
) -> Tensor:
    """o [B,T,HQ,V].

    q [B,T,HQ,K], k [B,T,H,K], v [B,T,H,V]; gates [B,T,HQ]: of the compressed branch (None: there is none), of the
    selected one (None: 1) and of the window (needed where window_size > 0). block_indices [B,T,H,S], of which
    block_counts (an int, or [B,T,H]) from the front count; -1, and a block that begins behind its token (FLA's callers
    pad with T), is none. Needed where g_cmp is None.

    Refused: a scale that is not 1/sqrt(K); two sets of cu_seqlens (a cache); block_counts that are no power of two
    where blocks are chosen (FLA rounds them up and takes them all), and fewer than 4 of them there.
    """
    F._tensors("q k v", (q, k, v))
    F._fit("parallel_nsa", q, k, v)
    _own_scale("scale", scale, q)
    if isinstance(cu_seqlens, tuple):
        raise NotImplementedError("cu_seqlens: is a pair (queries, keys); allowed: one tensor, of both. Decoding is C++'s")
    _size("block_size", block_size, 1)
    _size("window_size", window_size, 0)
    for name, gate in {"g_cmp": g_cmp, "g_slc": g_slc, "g_swa": g_swa}.items():
        if gate is not None:
            _gate(name, gate, q)
    if window_size > 0 and g_swa is None:
        raise ValueError(f"g_swa: is None with window_size {window_size}; allowed: [B,T,HQ]")
    if g_cmp is None and block_indices is None:
        raise ValueError("block_indices: is None without g_cmp; allowed: [B,T,H,S], or a gate of the branch that chooses")
    if block_indices is not None:
        _indices(block_indices, block_counts, k)
    try:
        return _computed(q, k, v, (g_cmp, g_slc, g_swa), block_indices, block_counts, block_size, window_size, cu_seqlens)
    except (TypeError, ValueError) as error:
        raise F.said(error, "parallel_nsa", k_cmp="k", v_cmp="v", blocks="block_indices") from None


def _size(name: str, size: int, least: int) -> None:
    if type(size) is not int or not least <= size <= MOST_TOKENS:
        raise ValueError(f"{name}: is {size!r}; allowed: a whole number from {least} to {MOST_TOKENS}")


def _gate(name: str, gate: Tensor, q: Tensor) -> None:
    F._tensors(name, (gate,))
    if gate.shape != q.shape[:3] or gate.device != q.device or not gate.is_floating_point():
        raise ValueError(
            f"{name}: is {F._describe(gate)}; allowed: [B,T,HQ] of a floating dtype, here {list(q.shape[:3])} on {q.device}"
        )


def _computed(q, k, v, gates, block_indices, block_counts, block_size, window_size, cu_seqlens):
    g_cmp, g_slc, g_swa = gates
    cu_seqlens = F._packing(cu_seqlens)
    given = block_indices
    count = _chosen(block_counts) if given is None else max(_LEAST_BLOCKS, given.shape[-1])
    last = {
        "geometry": F.Geometry(block_size, block_size, block_size, count, max(1, window_size)),
        "cu_seqlens": cu_seqlens,
    }
    nothing = torch.zeros_like(q[..., :1]).expand(*q.shape[:3], v.shape[3])
    o_cmp, o_win = nothing, nothing
    if g_cmp is not None:
        k_cmp, v_cmp = F.compress(k, v, **last)
        o_cmp = F.attend_compressed(q, k_cmp, v_cmp, **last)
        if given is None:
            block_indices = F.select(q, k_cmp, **last)
    if given is not None:
        behind = given > (_positions(q, cu_seqlens) // block_size).view(-1, 1, 1)
        block_indices = _ascending(given.masked_fill(behind, -1), block_counts, count)
    o_slc = F.attend_selected(q, k, v, block_indices, **last)
    if window_size > 0:
        o_win = F.attend_window(q, k, v, **last)
    zero, one = q.new_zeros(q.shape[:3]), q.new_ones(q.shape[:3])
    gates = (zero if g_cmp is None else g_cmp, one if g_slc is None else g_slc, g_swa if window_size > 0 else zero)
    return F.combine(torch.stack([g.float() for g in gates], -1), o_cmp, o_slc, o_win)


def _positions(q: Tensor, cu_seqlens: Optional[Tensor]) -> Tensor:
    """[T]: of each token in its document."""
    tokens = torch.arange(q.shape[1], device=q.device)
    if cu_seqlens is None or cu_seqlens.numel() == 0:  # what is no good is the operators' to refuse
        return tokens
    bounds = cu_seqlens.reshape(-1).to(tokens)
    return tokens - bounds[(torch.searchsorted(bounds, tokens, right=True) - 1).clamp(min=0)]


def _indices(indices: Tensor, counts: Union[Tensor, int], k: Tensor) -> None:
    F._whole_numbers("block_indices", indices)
    if indices.dim() != 4 or indices.shape[:3] != k.shape[:3] or indices.device != k.device:
        raise ValueError(
            f"block_indices: is {F._describe(indices)}; allowed: [B,T,H,S], which begins {list(k.shape[:3])}, on {k.device}"
        )
    if not isinstance(counts, Tensor):
        _size("block_counts", counts, 0)
        return
    F._whole_numbers("block_counts", counts)
    if counts.shape != indices.shape[:3] or counts.device != k.device:
        raise ValueError(
            f"block_counts: is {F._describe(counts)}; allowed: an int, or [B,T,H], which is {list(k.shape[:3])}, on {k.device}"
        )


def _own_scale(name: str, scale: Optional[float], q: Tensor) -> None:
    if scale is None:
        return
    check_real(name, scale)
    own = q.shape[-1] ** -0.5
    if not math.isclose(scale, own, rel_tol=1e-6):
        raise NotImplementedError(
            f"{name}: is {scale}; allowed: None or 1/sqrt({q.shape[-1]}) = {own:.6g}. Multiply q by the rest, in its dtype"
        )


def _chosen(counts: Union[Tensor, int]) -> int:
    if isinstance(counts, Tensor):
        raise NotImplementedError("block_counts: is a tensor without block_indices; allowed: an int where blocks are chosen")
    _size("block_counts", counts, 0)
    if not 4 <= counts <= MOST_BLOCKS or counts & (counts - 1):
        raise NotImplementedError(
            f"block_counts: is {counts}; allowed: 4, 8, 16, ... {MOST_BLOCKS} where blocks are chosen: FLA takes the next power of two; "
            "nsa.attention with Geometry(n_sel=...) takes any from 3 on"
        )
    return counts


def _ascending(indices: Tensor, counts: Union[Tensor, int], width: int) -> Tensor:
    """Only the first `counts`, in order, padded with -1 to `width`."""
    place = torch.arange(indices.shape[-1], device=indices.device)
    end = counts if isinstance(counts, int) else counts.unsqueeze(-1)
    none = torch.iinfo(torch.int32).max
    indices = indices.clamp(-1, none).masked_fill((place >= end) | (indices < 0), none).sort(-1).values
    indices = torch.nn.functional.pad(indices, (0, width - indices.shape[-1]), value=none)
    return indices.masked_fill(indices == none, -1).int()
