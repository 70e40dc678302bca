"""Start here: an adapter is a file like this one, 20 to 60 lines between nsa-validate and an implementation.

    python host.py --check skeleton.py

says what is wrong with it, or what it claims. This one computes the window alone; the other functions stand below as
comments. Copy the file, import your implementation at the top, and list in describe() only what it really computes.

Shapes (B batch, S tokens, Hq query heads in G groups, head j in group j // (Hq / G)):
    q [B,S,Hq,Dk]   k [B,S,G,Dk]   v [B,S,G,Dv]   o [B,S,Hq,Dv]   lse [B,Hq,S] fp32
    k_cmp [B,N_c,G,Dk]   gates [B,S,G,3] (cmp, sel, win)   blocks [B,S,G,n] int32, ascending, -1 at the end
The softmax scale is 1/sqrt(Dk). A row that sees no key gives 0 and an lse of -inf. Gradients come from torch.autograd.
geometry has l, d, l_sel, n_sel, w. cu_seqlens is None, or int32 on the CPU; then B = 1 and no document sees another.
Raise NotImplementedError for a call that your implementation does not serve. Do not change what you are given.
"""

import torch


def describe():
    return {
        "name": "skeleton",
        "version": "1",
        "computes": ["attend_window"],  # see below for the other seven
        "device": ["cpu", "cuda"],
        "dtypes": ["fp32", "bf16"],  # of fp64, fp32, bf16, fp16
        "layouts": ["batched"],  # and "packed" if it looks at cu_seqlens
        "gradients": True,
        "window": "w",  # a token sees w tokens, itself included; "w+1" if it sees one more
        "forced": None,  # {"first": 1, "last": 2}: blocks that are always chosen; needed by select, attend, attention
        "ties": None,  # "lower", "higher" or "any": which of two equal blocks; needed by the same
        "importance": None,  # "paper", or in words how blocks are scored; needed by the same
        "shared_kv": False,  # True for attention: one k and v for all branches
        "lse": "e",  # "2" for a log-sum-exp in base 2, None if none is returned
        # Optional: "blocks": "own" where attend_selected takes only choices that hold the token's own block.
        # Optional: "documents": "not empty" where a packed batch may hold no document without tokens.
        # Optional: "repeatable": False where the same inputs may give other bits.
        # Optional: "limits": {"heads_per_group": [16, 32], "d_k": {"min": 16, "max": 256, "multiple_of": 16},
        #                      "l_sel": 64, "equal": [["l", "d", "l_sel"], ["d_k", "d_v"]]},
    }


def attend_window(q, k, v, *, geometry, cu_seqlens):
    heads = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(heads, 2) for x in (k, v))  # one key head for every query head
    token = torch.arange(q.shape[1], device=q.device)
    behind = token[:, None] - token  # how far a key lies behind its query
    scores = torch.einsum("bshd,bthd->bhst", q, k).float() / q.shape[3] ** 0.5
    scores = scores.masked_fill((behind < 0) | (behind >= geometry.w), -torch.inf)
    o = torch.einsum("bhst,bthd->bshd", scores.softmax(-1).to(v.dtype), v)
    return o, scores.logsumexp(-1)  # or o alone, and "lse": None


# def compress(k, v, *, geometry, cu_seqlens):
#     Means of l tokens, every d tokens, floor((S - l) / d) + 1 of them; of each document by itself.
#     return k_cmp, v_cmp
#
# def attend_compressed(q, k_cmp, v_cmp, *, geometry, cu_seqlens):
#     Token t sees block i when i * d + l - 1 <= t.
#     return o, lse
#
# def select(q, k_cmp, *, geometry, cu_seqlens):
#     return blocks                       # numbered from the start of the token's document
#
# def attend_selected(q, k, v, blocks, *, geometry, cu_seqlens):
#     return o, lse                       # the tokens up to t of the chosen blocks of l_sel tokens
#
# def combine(gates, o_cmp, o_sel, o_win):
#     return o                            # the sum of gate times branch
#
# def attend(q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates, *, geometry, cu_seqlens, blocks):
#     return o                            # all of it but compress; blocks is None where you choose them
#
# def attention(q, k, v, gates, *, geometry, cu_seqlens):
#     return o                            # all of it, compression by the mean included, one k and v for every branch
