"""Native Sparse Attention in plain PyTorch: dense scores under explicit masks, one document after the other.

It is slow and says what is meant. Softmax, scores and gates are computed in fp32 (fp64 for fp64), and every sum of
block scores is taken in the same order, so that equal blocks get equal bits and ties go to the lower number.
"""

import torch


def describe():
    return {
        "name": "plain PyTorch",
        "version": torch.__version__,
        "computes": [
            "attend",
            "compress",
            "attend_compressed",
            "select",
            "attend_selected",
            "attend_window",
            "combine",
        ],
        "device": ["cpu", "cuda"],
        "dtypes": ["fp64", "fp32", "bf16", "fp16"],
        "layouts": ["batched", "packed"],
        "gradients": True,
        "window": "w",
        "forced": {"first": 1, "last": 2},
        "ties": "lower",
        "importance": "paper",
        "shared_kv": False,
        "lse": "e",
        "repeatable": True,
    }


def compress(k, v, *, geometry, cu_seqlens):
    """The mean of l tokens, every d tokens."""
    starts = []
    for tokens, _ in _documents(geometry, cu_seqlens, k.shape[1]):
        starts += range(tokens.start, tokens.stop - geometry.l + 1, geometry.d)
    if not starts:
        return k[:, :0], v[:, :0]
    return tuple(
        torch.stack([_wide(x[:, start : start + geometry.l]).mean(1) for start in starts], 1).to(x.dtype)
        for x in (k, v)
    )


def attend_compressed(q, k_cmp, v_cmp, *, geometry, cu_seqlens):
    """A token sees the blocks that end at it or before."""
    parts = []
    for tokens, blocks in _documents(geometry, cu_seqlens, q.shape[1]):
        visible = _complete(geometry, tokens, blocks, q.device)
        parts.append(_attend(q[:, tokens], k_cmp[:, blocks], v_cmp[:, blocks], visible))
    return _joined(parts)


@torch.no_grad()
def select(q, k_cmp, *, geometry, cu_seqlens):
    """The first block, the token's own, the one before, and those of the highest scores."""
    parts = []
    for tokens, blocks in _documents(geometry, cu_seqlens, q.shape[1]):
        scores = _importance(q[:, tokens], k_cmp[:, blocks], geometry, _complete(geometry, tokens, blocks, q.device))
        block = torch.arange(scores.shape[-1], device=q.device)
        own = (torch.arange(scores.shape[1], device=q.device) // geometry.l_sel)[:, None, None]  # [S,1,1]
        scores = scores.masked_fill((block == 0) | (block >= own - 1), torch.inf)
        scores = scores.masked_fill(block > own, -torch.inf)
        values, order = torch.sort(scores, dim=-1, descending=True, stable=True)
        order = order.masked_fill(values == -torch.inf, len(block))[..., : geometry.n_sel].sort(-1).values
        order = torch.nn.functional.pad(order, (0, geometry.n_sel - order.shape[-1]), value=len(block))
        parts.append(order.masked_fill(order == len(block), -1).int())
    return torch.cat(parts, 1)


def attend_selected(q, k, v, blocks, *, geometry, cu_seqlens):
    """A token sees the tokens up to itself of its chosen blocks."""
    parts = []
    for tokens, _ in _documents(geometry, cu_seqlens, q.shape[1]):
        token = torch.arange(tokens.stop - tokens.start, device=q.device)
        block = torch.arange(len(token) // geometry.l_sel + 1, device=q.device)
        chosen = (blocks[:, tokens, :, :, None] == block).any(3)  # [B,S,G,blocks]
        chosen = chosen[..., token // geometry.l_sel].transpose(1, 2)[:, :, None]  # [B,G,1,S,S]
        parts.append(_attend(q[:, tokens], k[:, tokens], v[:, tokens], chosen & (token <= token[:, None])))
    return _joined(parts)


def attend_window(q, k, v, *, geometry, cu_seqlens):
    """A token sees the last w tokens, itself included."""
    parts = []
    for tokens, _ in _documents(geometry, cu_seqlens, q.shape[1]):
        token = torch.arange(tokens.stop - tokens.start, device=q.device)
        behind = token[:, None] - token  # [S,S], how far the key lies back
        parts.append(_attend(q[:, tokens], k[:, tokens], v[:, tokens], (behind >= 0) & (behind < geometry.w)))
    return _joined(parts)


def combine(gates, o_cmp, o_sel, o_win):
    """The sum of gate times branch; the heads of a group share their gates."""
    heads = o_cmp.shape[2] // gates.shape[2]
    gates = _wide(gates).repeat_interleave(heads, 2)[..., None, :]  # [B,S,Hq,1,3]
    return (gates * _wide(torch.stack([o_cmp, o_sel, o_win], -1))).sum(-1).to(o_cmp.dtype)


def attend(q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates, *, geometry, cu_seqlens, blocks):
    """All of it but the compression."""
    layout = {"geometry": geometry, "cu_seqlens": cu_seqlens}
    o_cmp, _ = attend_compressed(q, k_cmp, v_cmp, **layout)
    if blocks is None:
        blocks = select(q, k_cmp, **layout)
    o_sel, _ = attend_selected(q, k_sel, v_sel, blocks, **layout)
    o_win, _ = attend_window(q, k_win, v_win, **layout)
    return combine(gates, o_cmp, o_sel, o_win)


def _documents(geometry, cu_seqlens, tokens):
    """Of every document that is not empty: its tokens and its compressed blocks, as slices."""
    bounds, first = [0, tokens] if cu_seqlens is None else cu_seqlens.tolist(), 0
    for begin, end in zip(bounds, bounds[1:]):
        count = max(0, (end - begin - geometry.l) // geometry.d + 1)
        if end > begin:
            yield slice(begin, end), slice(first, first + count)
        first += count


def _complete(geometry, tokens, blocks, device):
    """A token sees a compressed block when its last token is not after it. [S,N_c]"""
    last = torch.arange(blocks.stop - blocks.start, device=device) * geometry.d + geometry.l - 1
    return last <= torch.arange(tokens.stop - tokens.start, device=device)[:, None]


def _attend(q, k, v, visible):
    """Softmax over the visible keys. A row that sees none is exactly 0, its gradients too, its log-sum-exp -inf."""
    grouped = _wide(q).unflatten(2, (k.shape[2], -1))
    scores = torch.einsum("bsghd,bkgd->bghsk", grouped, _wide(k)) / q.shape[3] ** 0.5
    scores = scores.masked_fill(~visible, -torch.inf)
    p = torch.softmax(scores, -1).masked_fill(~visible, 0.0)  # NaN where nothing is seen; the masks stop it both ways
    lse = torch.logsumexp(scores, -1)
    o = torch.einsum("bghsk,bkgd->bsghd", p, _wide(v)).flatten(2, 3)
    return o.to(q.dtype), lse.flatten(1, 2)


def _importance(q, k_cmp, geometry, visible):
    """The attention of a group's heads to compressed blocks, gathered in the selection blocks that they overlap."""
    grouped = _wide(q).unflatten(2, (k_cmp.shape[2], -1))  # [B,S,G,h,Dk]
    columns = [(grouped * _wide(k_cmp)[:, i, None, :, None]).sum(-1) for i in range(k_cmp.shape[1])]
    scores = torch.stack(columns, -1) if columns else grouped[..., :0]
    scores = scores / q.shape[3] ** 0.5
    visible = visible[:, None, None]  # [S,1,1,N_c]
    p = torch.softmax(scores.masked_fill(~visible, torch.finfo(scores.dtype).min), -1).masked_fill(~visible, 0.0)
    p = sum(p.unbind(3))  # [B,S,G,N_c], over the heads of a group
    importance = []
    for begin in range(0, q.shape[1], geometry.l_sel):
        score = p.new_zeros(p.shape[:3])
        for i in range(p.shape[-1]):
            first = i * geometry.d
            overlap = min(first + geometry.l, begin + geometry.l_sel) - max(first, begin)
            if overlap > 0:
                score = score + overlap / geometry.d * p[..., i]
        importance.append(score)
    return torch.stack(importance, -1)


def _joined(parts):
    """The documents laid end to end."""
    return torch.cat([o for o, _ in parts], 1), torch.cat([lse for _, lse in parts], 2)


def _wide(x):
    return x if x.dtype == torch.float64 else x.float()
