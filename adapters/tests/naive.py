"""Native Sparse Attention from its equations, one row after the other, for tests of a few tokens in fp64."""

from __future__ import annotations

import math

import torch


def bounds(cu_seqlens, tokens: int) -> list[tuple[int, int]]:
    ends = [0, tokens] if cu_seqlens is None else [int(end) for end in cu_seqlens]
    return list(zip(ends, ends[1:]))


def compress(x, geometry, cu_seqlens):
    """Eq 7 with the mean: block i of a document is its tokens [i d, i d + l)."""
    blocks = []
    for begin, end in bounds(cu_seqlens, x.shape[1]):
        first = begin
        while first + geometry.l <= end:
            blocks.append(sum(x[:, token] for token in range(first, first + geometry.l)) / geometry.l)
            first += geometry.d
    return torch.stack(blocks, 1) if blocks else x[:, :0]


def attend(q, k, v, sees):
    """softmax(q k / sqrt(Dk)) v, row by row; `sees(b, t, g)` lists the keys of a row. Also the log-sum-exp."""
    batch, tokens, heads, width = q.shape
    per_group = heads // k.shape[2]
    o = [[[None] * heads for _ in range(tokens)] for _ in range(batch)]
    lse = torch.full((batch, heads, tokens), -math.inf, dtype=q.dtype)
    for b, t, head in ((b, t, head) for b in range(batch) for t in range(tokens) for head in range(heads)):
        group = head // per_group
        keys = sees(b, t, group)
        if not keys:
            o[b][t][head] = torch.zeros(v.shape[3], dtype=q.dtype)
            continue
        weights = torch.exp(k[b, keys, group] @ q[b, t, head] / math.sqrt(width))
        o[b][t][head] = (weights / weights.sum()) @ v[b, keys, group]
        lse[b, head, t] = math.log(weights.sum().item())
    return torch.stack([torch.stack([torch.stack(row) for row in rows]) for rows in o]), lse


def attend_compressed(q, k_cmp, v_cmp, geometry, cu_seqlens):
    return attend(q, k_cmp, v_cmp, lambda b, t, g: complete(t, geometry, cu_seqlens, q.shape[1]))


def attend_selected(q, k, v, blocks, geometry, cu_seqlens):
    def sees(b, t, g):
        begin, _ = document(t, cu_seqlens, q.shape[1])
        chosen = {int(block) for block in blocks[b, t, g] if block >= 0}
        return [token for token in range(begin, t + 1) if (token - begin) // geometry.l_sel in chosen]

    return attend(q, k, v, sees)


def attend_window(q, k, v, geometry, cu_seqlens):
    def sees(b, t, g):
        begin, _ = document(t, cu_seqlens, q.shape[1])
        return list(range(max(begin, t - geometry.w + 1), t + 1))

    return attend(q, k, v, sees)


def select(q, k_cmp, geometry, cu_seqlens):
    """Eq 8 to 11: a block's score is the attention to compressed blocks, by the tokens that they share."""
    batch, tokens, heads, width = q.shape
    groups = k_cmp.shape[2]
    table = torch.full((batch, tokens, groups, geometry.n_sel), -1, dtype=torch.int32)
    for b, t, g in ((b, t, g) for b in range(batch) for t in range(tokens) for g in range(groups)):
        begin, first = document(t, cu_seqlens, tokens)[0], first_block(t, geometry, cu_seqlens, tokens)
        own = (t - begin) // geometry.l_sel
        seen = complete(t, geometry, cu_seqlens, tokens)
        scores = [0.0] * (own + 1)
        for head in range(g * heads // groups, (g + 1) * heads // groups):
            weights = [math.exp(float(k_cmp[b, i, g] @ q[b, t, head]) / math.sqrt(width)) for i in seen]
            for weight, i in zip(weights, seen):
                for block in range(own + 1):
                    shared = overlap((i - first) * geometry.d, geometry.l, block * geometry.l_sel, geometry.l_sel)
                    scores[block] += weight / sum(weights) * shared / geometry.d
        forced = {0, max(own - 1, 0), own}
        others = sorted((block for block in range(own + 1) if block not in forced), key=lambda j: (-scores[j], j))
        chosen = sorted([*forced, *others[: geometry.n_sel - len(forced)]])
        table[b, t, g, : len(chosen)] = torch.tensor(chosen, dtype=torch.int32)
    return table


def combine(gates, o_cmp, o_sel, o_win):
    """Eq 5."""
    rows = []
    for head in range(o_cmp.shape[2]):
        gate = gates[:, :, head * gates.shape[2] // o_cmp.shape[2]]
        branches = (o[:, :, head] for o in (o_cmp, o_sel, o_win))
        rows.append(sum(gate[..., i : i + 1] * branch for i, branch in enumerate(branches)))
    return torch.stack(rows, 2)


def document(t: int, cu_seqlens, tokens: int) -> tuple[int, int]:
    return next((begin, end) for begin, end in bounds(cu_seqlens, tokens) if begin <= t < end)


def first_block(t: int, geometry, cu_seqlens, tokens: int) -> int:
    """Number of the first compressed block of a token's document among those of all."""
    before = [end - begin for begin, end in bounds(cu_seqlens, tokens) if end <= t]
    return sum((length - geometry.l) // geometry.d + 1 for length in before if length >= geometry.l)


def complete(t: int, geometry, cu_seqlens, tokens: int) -> list[int]:
    """Compressed blocks of a token's document that end at the token or before."""
    begin, _ = document(t, cu_seqlens, tokens)
    first, local = first_block(t, geometry, cu_seqlens, tokens), t - begin
    count = 0 if local < geometry.l - 1 else (local - geometry.l + 1) // geometry.d + 1
    return list(range(first, first + count))


def overlap(start: int, length: int, other: int, other_length: int) -> int:
    return max(0, min(start + length, other + other_length) - max(start, other))
