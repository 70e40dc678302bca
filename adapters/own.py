"""Our own operators in PyTorch (pip install .): torch.ops.nsa by the package nsa, judged as anybody's.

Where there is a GPU only what our kernels serve; the rest is refused and not applicable. On the CPU it is sdpa.
"""

import nsa
import torch

if not hasattr(nsa, "attention"):  # a folder of that name, such as this project's C++
    raise ImportError(f"nsa is {nsa.__path__}, not the package: pip install .")


KERNELS = torch.cuda.is_available()


def describe():
    limits = {"d_k": [64], "d_v": [64], "heads_per_group": {"min": 1, "max": 16}} if KERNELS else {}
    return {
        "name": "nsa, the Python package",
        "version": nsa.__version__,
        "computes": ["attend", "compress", "attend_compressed", "select", "attend_selected", "attend_window", "combine"],
        "device": ["cpu", "cuda"],
        "dtypes": ["bf16", "fp16"] if KERNELS else ["fp64", "fp32", "bf16", "fp16"],
        "limits": limits,
        "layouts": ["batched", "packed"],
        "gradients": True,
        "window": "w",
        "forced": {"first": 1, "last": 2},
        "ties": "lower",
        "importance": "paper",
        "shared_kv": False,
        "lse": None,
        "repeatable": True,
    }


def compress(k, v, *, geometry, cu_seqlens):
    return nsa.compress(k, v, **_last(k, geometry, cu_seqlens))


def attend_compressed(q, k_cmp, v_cmp, *, geometry, cu_seqlens):
    return nsa.attend_compressed(q, k_cmp, v_cmp, **_last(q, geometry, cu_seqlens))


def select(q, k_cmp, *, geometry, cu_seqlens):
    return nsa.select(q, k_cmp, **_last(q, geometry, cu_seqlens))


def attend_selected(q, k, v, blocks, *, geometry, cu_seqlens):
    return nsa.attend_selected(q, k, v, blocks, **_last(q, geometry, cu_seqlens))


def attend_window(q, k, v, *, geometry, cu_seqlens):
    return nsa.attend_window(q, k, v, **_last(q, geometry, cu_seqlens))


def combine(gates, o_cmp, o_sel, o_win):
    return nsa.combine(gates, o_cmp, o_sel, o_win, backend=_backend(gates))


def attend(q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates, *, geometry, cu_seqlens, blocks):
    branches = (k_cmp, v_cmp, k_sel, v_sel, k_win, v_win)
    return nsa.attend(q, *branches, gates, blocks=blocks, **_last(q, geometry, cu_seqlens))


def _last(x, geometry, cu_seqlens):
    sizes = nsa.Geometry(geometry.l, geometry.d, geometry.l_sel, geometry.n_sel, geometry.w)
    return {"geometry": sizes, "cu_seqlens": cu_seqlens, "backend": _backend(x)}


def _backend(x):
    return "cuda" if x.is_cuda else "sdpa"
