"""FLA (pip install fla-core einops): its naive functions on CPU tensors, its Triton kernels on CUDA tensors.

Compression and selection share one block size. A document has ceil(S / l) compressed blocks there, the last of which
no token sees: it is zero here. naive_nsa as a whole needs a GPU as well, because it pools in Triton and takes the
window from flash-attn; so the CPU gets its three functions one by one. naive_nsa_topk scores blocks in the dtype of q.
The kernels sort the queries of a block with atomics, so that gradients of k and v differ in their last bits.
"""

import importlib.metadata

import torch
from fla.ops.nsa.compression import parallel_nsa_compression
from fla.ops.nsa.naive import naive_nsa_compression, naive_nsa_selection, naive_nsa_topk
from fla.ops.nsa.parallel import flash_attn_func, parallel_nsa, parallel_nsa_topk
from fla.ops.utils.pooling import mean_pooling


def describe():
    return {
        "name": "fla.ops.nsa, naive on the CPU and parallel on CUDA",
        "version": importlib.metadata.version("fla-core"),
        "computes": ["compress", "attend_compressed", "select", "attend_selected"]
        + (["attention"] if flash_attn_func is not None else []),
        "device": ["cpu", "cuda"],
        "dtypes": ["fp32", "bf16", "fp16"],
        "layouts": ["batched", "packed"],
        "gradients": True,
        "window": "w",
        "forced": {"first": 1, "last": 2},
        "ties": "any",
        "importance": "paper",
        "blocks": "own",  # it divides by the weights of a row: a token that is given no block at all gets NaN
        "shared_kv": True,
        "lse": "e",
        "documents": "not empty",  # it miscounts the blocks of what follows an empty one
        "repeatable": False,
        "limits": {
            "heads_per_group": [16, 32, 64],
            "d_k": {"min": 16, "max": 256},
            "d_v": {"min": 16, "max": 256},
            "l_sel": [16, 32, 64, 128],
            "equal": [["l", "d", "l_sel"]],
        },
    }


def compress(k, v, *, geometry, cu_seqlens):
    if not _on_gpu(k):
        raise NotImplementedError("fla pools in Triton, on CUDA alone")
    rows, _ = _whole_blocks(geometry, cu_seqlens, k)
    return tuple(mean_pooling(x, geometry.l, _bounds(cu_seqlens, k))[:, rows] for x in (k, v))


def attend_compressed(q, k_cmp, v_cmp, *, geometry, cu_seqlens):
    k, v = (_with_tails(x, geometry, cu_seqlens, q) for x in (k_cmp, v_cmp))
    last = {"block_size": geometry.l, "scale": q.shape[3] ** -0.5, "cu_seqlens": _bounds(cu_seqlens, q)}
    if not _on_gpu(q):
        o, lse = naive_nsa_compression(q, k, v, **last)
        return o, lse.transpose(1, 2)
    o, lse = parallel_nsa_compression(q, k, v, TK=q.shape[1], **last)
    blind = _positions(cu_seqlens, q) < geometry.l - 1  # the kernel writes an lse of 0 where nothing is seen
    return o, lse.transpose(1, 2).masked_fill(blind, -torch.inf)


def select(q, k_cmp, *, geometry, cu_seqlens):
    k, n = _with_tails(k_cmp, geometry, cu_seqlens, q), geometry.n_sel
    last = {"block_size": geometry.l, "scale": q.shape[3] ** -0.5, "cu_seqlens": _bounds(cu_seqlens, q)}
    if _on_gpu(q):
        _require_table(geometry)
        blocks = parallel_nsa_topk(q, k, TK=q.shape[1], lse=None, block_counts=n, **last)
    else:
        blocks = naive_nsa_topk(q, k, block_counts=n, **last)
    none = torch.iinfo(torch.int32).max
    blocks = blocks.masked_fill(blocks < 0, none).sort(-1).values
    return blocks.masked_fill(blocks == none, -1).int()


def attend_selected(q, k, v, blocks, *, geometry, cu_seqlens):
    last = {"block_size": geometry.l_sel, "cu_seqlens": _bounds(cu_seqlens, q)}
    if not _on_gpu(q):
        return naive_nsa_selection(q, k, v, blocks.long(), **last)
    padded = 1 << (geometry.n_sel - 1).bit_length()
    blocks = torch.nn.functional.pad(blocks.long(), (0, padded - geometry.n_sel), value=-1)
    return parallel_nsa(q, k, v, block_indices=blocks, block_counts=padded, **last)


def attention(q, k, v, gates, *, geometry, cu_seqlens):
    if not _on_gpu(q) or q.shape[3] != v.shape[3]:
        raise NotImplementedError("fla pools in Triton and takes its window from flash-attn: on CUDA, with Dk = Dv")
    _require_table(geometry)
    g_cmp, g_slc, g_swa = gates.to(q.dtype).repeat_interleave(q.shape[2] // k.shape[2], 2).unbind(-1)
    sizes = {"block_counts": geometry.n_sel, "block_size": geometry.l, "window_size": geometry.w}
    return parallel_nsa(q, k, v, g_cmp, g_slc, g_swa, cu_seqlens=_bounds(cu_seqlens, q), **sizes)


def _on_gpu(x):
    """Which of the two serves a call."""
    if x.is_cuda and x.dtype == torch.float32:
        raise NotImplementedError("fla's kernels multiply fp32 in TF32")
    return x.is_cuda


def _require_table(geometry):
    """The kernel that chooses rounds n up to a power of two, and takes them all."""
    if geometry.n_sel & (geometry.n_sel - 1) or 2 * geometry.n_sel > geometry.l:
        raise NotImplementedError("fla's kernels choose 2^k blocks, l / 2 of them at most")


def _bounds(cu_seqlens, x):
    if cu_seqlens is None:
        return None
    return cu_seqlens.to(x.device)


def _lengths(cu_seqlens, x):
    return [x.shape[1]] if cu_seqlens is None else cu_seqlens.diff().tolist()


def _positions(cu_seqlens, q):
    return torch.cat([torch.arange(length, device=q.device) for length in _lengths(cu_seqlens, q)])


def _whole_blocks(geometry, cu_seqlens, q):
    """Where fla has the blocks that are whole, and how many blocks it has in all."""
    rows, first = [], 0
    for length in _lengths(cu_seqlens, q):
        rows += range(first, first + length // geometry.l)
        first += -(-length // geometry.l)
    return torch.tensor(rows, dtype=torch.long, device=q.device), first


def _with_tails(x, geometry, cu_seqlens, q):
    """Compressed blocks laid out as fla has them, with the incomplete one at a document's end."""
    rows, count = _whole_blocks(geometry, cu_seqlens, q)
    return x.new_zeros(x.shape[0], count, *x.shape[2:]).index_copy(1, rows, x)
