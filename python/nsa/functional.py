"""Attention and its parts as functions of tensors.

Shapes (B batch, S tokens, Hq query heads in G groups, head j in group j // (Hq / G), N_c compressed blocks):
    q [B,S,Hq,Dk]   k [B,S,G,Dk]   v [B,S,G,Dv]   o [B,S,Hq,Dv]   k_cmp, v_cmp [B,N_c,G,D]
    gates [B,S,G,3] in the order compressed, selected, window; fp32 is best, any floating dtype goes
    blocks [B,S,G,n_sel] int32 or int64, ascending, -1 at the end; numbered from the start of the token's document
    cu_seqlens [documents + 1] int32 or int64: a packed batch, B = 1. Best int32 on the CPU: from a GPU it has to be
        fetched, which waits for it.
The softmax scale is 1/sqrt(Dk). A row that sees no key gives 0 and gets no gradient. Strides are free: what the
kernels cannot read as it lies is copied. fp32, fp64, bf16, fp16.

`backend`: "auto" is our kernels' where they serve the call, else sdpa's (any device, width and dtype, far slower on a
GPU); "cuda" raises NotImplementedError with the reason instead; "sdpa" never asks the kernels.
"""

from __future__ import annotations

import re
import warnings
from typing import NamedTuple, Optional, Union

import torch
from torch import Tensor

from nsa.arguments import check_options

_OPS = torch.ops.nsa
_ATTENTION = _OPS.attention_output.default
_OF_ATTENTION = "q k v k_sel v_sel k_win v_win gates"
_OF_ATTEND = "q k_cmp v_cmp k_sel v_sel k_win v_win gates"
_INDICES = (torch.int32, torch.int64)
FLOATING = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_FLOATING = "float64, float32, bfloat16 or float16"


class Geometry(NamedTuple):
    """Sizes in tokens: compression block and stride, selection block, how many blocks (the three forced ones among
    them), window (the token itself among them). d divides l and l_sel, l <= l_sel, n_sel >= 3."""

    l: int = 32  # noqa: E741  (the paper's name)
    d: int = 16
    l_sel: int = 64
    n_sel: int = 16
    w: int = 512


class PhiWeights(NamedTuple):
    """Learned compression: vec(block + position) -> fc1 -> SiLU -> fc2."""

    position: Tensor  # [l, D]
    fc1: Tensor  # [D, l*D]
    fc2: Tensor  # [D, D]


PAPER = Geometry()
Branches = Union[Tensor, "tuple[Tensor, Tensor, Tensor]"]


def attention(
    q: Tensor,
    k: Branches,
    v: Branches,
    gates: Tensor,
    *,
    geometry: Geometry = PAPER,
    cu_seqlens: Optional[Tensor] = None,
    blocks: Optional[Tensor] = None,
    phi_k: Optional[PhiWeights] = None,
    phi_v: Optional[PhiWeights] = None,
    backend: str = "auto",
) -> Tensor:
    """All of Native Sparse Attention between its projections: o [B,S,Hq,Dv].

    k, v: one tensor for all branches, or three, of the compressed, selected and window branch. Positions (RoPE) are in
    q and k already. blocks: chosen by the compressed branch unless given.
    """
    k_cmp, k_sel, k_win = _branches("k", k)
    v_cmp, v_sel, v_win = _branches("v", v)
    if cu_seqlens is not None or blocks is not None:
        cu_seqlens, blocks = _packing(cu_seqlens), _table(blocks)
    tokens = (q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates)
    try:
        if phi_k is None and phi_v is None:
            _tell_of_missing_kernels(q, backend)
            return _ATTENTION(*tokens, blocks, cu_seqlens, *geometry, backend)
        _tensors(_OF_ATTENTION, tokens)
        _fit("attention", q, k_cmp, v_cmp)
        k_cmp, v_cmp = compress(
            k_cmp, v_cmp, geometry=geometry, cu_seqlens=cu_seqlens, phi_k=phi_k, phi_v=phi_v, backend=backend
        )
        return attend(
            q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates,
            geometry=geometry, cu_seqlens=cu_seqlens, blocks=blocks, backend=backend,
        )  # fmt: skip
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        _say(error, tokens, k, v, geometry, backend)
        raise


def attend(
    q: Tensor,
    k_cmp: Tensor,
    v_cmp: Tensor,
    k_sel: Tensor,
    v_sel: Tensor,
    k_win: Tensor,
    v_win: Tensor,
    gates: Tensor,
    *,
    geometry: Geometry = PAPER,
    cu_seqlens: Optional[Tensor] = None,
    blocks: Optional[Tensor] = None,
    backend: str = "auto",
) -> Tensor:
    """The three branches, the choice of blocks and the gated sum: all of `attention` but the compression."""
    tokens = (q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates)
    _tensors(_OF_ATTEND, tokens)
    _tell_of_missing_kernels(q, backend)
    return _called(_OPS.attend.default, *tokens, _table(blocks), _packing(cu_seqlens), geometry=geometry, backend=backend)[0]


def compress(
    k: Tensor,
    v: Tensor,
    *,
    geometry: Geometry = PAPER,
    cu_seqlens: Optional[Tensor] = None,
    phi_k: Optional[PhiWeights] = None,
    phi_v: Optional[PhiWeights] = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Blocks of l tokens, every d tokens: (k_cmp [B,N_c,G,Dk], v_cmp [B,N_c,G,Dv]); their mean, or learned."""
    _tensors("k v", (k, v))
    cu_seqlens = _packing(cu_seqlens)
    if phi_k is None and phi_v is None:
        return _called(_OPS.compress.default, k, v, cu_seqlens, geometry=geometry, backend=backend)
    for name, phi in (("phi_k", phi_k), ("phi_v", phi_v)):
        if phi is not None and not isinstance(phi, PhiWeights):
            raise TypeError(f"{name}: is {_describe(phi)}; allowed: nsa.PhiWeights({', '.join(PhiWeights._fields)})")
    # Also where both are learned: the operator looks at all that it is given, for one pass over k and v.
    plain, means = "auto" if backend == "cuda" else backend, (None, None)
    if phi_k is None or phi_v is None or cu_seqlens is None or not k.is_meta:
        means = _called(_OPS.compress.default, k, v, cu_seqlens, geometry=geometry, backend=plain)
    else:  # whose operator does not know how many blocks there are
        check_options(geometry, backend)
    if backend == "cuda":
        raise NotImplementedError("compress: our kernels do not learn; backend='auto' or 'sdpa' serves phi_k, phi_v")
    geometry = Geometry(*geometry)
    learned = (("k", k, phi_k), ("v", v, phi_v))
    return tuple(
        mean if phi is None else _learned(name, x, phi, geometry, cu_seqlens)
        for (name, x, phi), mean in zip(learned, means)
    )


def attend_compressed(
    q: Tensor,
    k_cmp: Tensor,
    v_cmp: Tensor,
    *,
    geometry: Geometry = PAPER,
    cu_seqlens: Optional[Tensor] = None,
    backend: str = "auto",
) -> Tensor:
    """Token t sees compressed block i when i * d + l - 1 <= t."""
    _tensors("q k_cmp v_cmp", (q, k_cmp, v_cmp))
    return _called(_OPS.attend_compressed.default, q, k_cmp, v_cmp, _packing(cu_seqlens), geometry=geometry, backend=backend)[0]


def select(
    q: Tensor,
    k_cmp: Tensor,
    *,
    geometry: Geometry = PAPER,
    cu_seqlens: Optional[Tensor] = None,
    backend: str = "auto",
) -> Tensor:
    """blocks [B,S,G,n_sel] int32: the first, the token's own, the one before, and the best of the rest. Not
    differentiated."""
    _tensors("q k_cmp", (q, k_cmp))
    return _called(_OPS.select.default, q, k_cmp, None, _packing(cu_seqlens), geometry=geometry, backend=backend)


def attend_selected(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    blocks: Tensor,
    *,
    geometry: Geometry = PAPER,
    cu_seqlens: Optional[Tensor] = None,
    backend: str = "auto",
) -> Tensor:
    """Token t sees the tokens up to itself of its blocks."""
    _tensors("q k v blocks", (q, k, v, blocks))
    rest = (_table(blocks), _packing(cu_seqlens))
    return _called(_OPS.attend_selected.default, q, k, v, *rest, geometry=geometry, backend=backend)[0]


def attend_window(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    geometry: Geometry = PAPER,
    cu_seqlens: Optional[Tensor] = None,
    backend: str = "auto",
) -> Tensor:
    """Token t sees the tokens [t - w + 1, t]."""
    _tensors("q k v", (q, k, v))
    return _called(_OPS.attend_window.default, q, k, v, _packing(cu_seqlens), geometry=geometry, backend=backend)[0]


def combine(gates: Tensor, o_cmp: Tensor, o_sel: Tensor, o_win: Tensor, *, backend: str = "auto") -> Tensor:
    """The sum of gate times branch; the heads of a group share their gates."""
    _tensors("gates o_cmp o_sel o_win", (gates, o_cmp, o_sel, o_win))
    try:
        return _OPS.combine.default(gates, o_cmp, o_sel, o_win, backend)
    except (TypeError, RuntimeError):
        check_options(PAPER, backend)
        raise


def said(error: Exception, face: str, **names: str) -> Exception:
    """The error in its caller's words: `face` is the function that was called, `names` what it calls what is named so
    further down. Compiled code (torch.compile) raises the operator's own words."""
    text = re.sub(r"^(attention|attend\w*|combine|compress|select)(?=: )", face, str(error))
    if names:
        text = re.sub(rf"(?<![\w.'])({'|'.join(names)})(?![\w'])", lambda found: names[found[1]], text)
    return type(error)(text)


def _called(operator, *args, geometry: Geometry, backend: str):
    """The operator's result, or what is wrong with that of its arguments which the dispatcher does not take."""
    try:
        return operator(*args, *geometry, backend)
    except (TypeError, RuntimeError):
        check_options(geometry, backend)
        raise


def _say(error: Exception, tokens: tuple, k: Branches, v: Branches, geometry: Geometry, backend: str) -> None:
    """Raises what a call of `attention` is to say of its arguments. They are looked at here only, where a call has
    failed: before each call that would cost the host its time."""
    try:
        _tensors(_OF_ATTENTION, tokens)
        if not isinstance(error, ValueError):  # which says it all
            check_options(geometry, backend)
    except (TypeError, ValueError) as own:
        error = own
    if isinstance(error, (TypeError, ValueError, NotImplementedError)):
        raise said(error, "attention", **_branch_names("k", k), **_branch_names("v", v)) from None


def _branch_names(name: str, given: Branches) -> dict[str, str]:
    """What a caller of `attention` calls the keys, or values, of each branch."""
    own = [name] * 3 if isinstance(given, Tensor) else [f"{name}[{i}]" for i in range(3)]
    return dict(zip((name, f"{name}_sel", f"{name}_win"), own)) | {f"{name}_cmp": own[0]}


def _tensors(names: str, values: tuple) -> None:
    for value in values:
        if not isinstance(value, Tensor) or value.layout is not torch.strided:
            break
    else:
        return
    for name, value in zip(names.split(), values):
        if not isinstance(value, Tensor):
            raise TypeError(f"{name}: is {_describe(value)}; allowed: a tensor")
        if value.layout is not torch.strided:
            raise ValueError(f"{name}: is {value.layout}; allowed: a dense tensor, whatever its strides")


def _fit(face: str, q: Tensor, k: Tensor, v: Tensor) -> None:
    """What is cut into blocks before q meets it: said of the caller's tensors, not of the blocks."""
    any_dtype = _casts(q)
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 4 or x.dtype not in FLOATING:
            raise ValueError(f"{face}: {name} is {_describe(x)}; allowed: [B,S,heads,width], {_FLOATING}")
        if not (x.dtype == q.dtype or any_dtype) or x.device != q.device or x.shape[:2] != q.shape[:2]:
            raise ValueError(
                f"{face}: {name} is {_describe(x)}; allowed: dtype, device, B and S of q, which is {_describe(q)}"
            )
    if k.shape[3] != q.shape[3]:
        raise ValueError(f"{face}: k is {_describe(k)}; allowed: the width of q, {q.shape[3]}")


def _casts(x: Tensor) -> bool:
    """Is autocast on where x lies? torch knows none of meta tensors."""
    return not x.is_meta and torch.is_autocast_enabled(x.device.type)


def _branches(name: str, value: Branches) -> tuple[Tensor, Tensor, Tensor]:
    if type(value) is tuple and len(value) == 3:  # first: what is no tensor takes isinstance long to find out
        return value
    if isinstance(value, Tensor):
        return value, value, value
    if not isinstance(value, (tuple, list)) or len(value) != 3:
        raise TypeError(f"{name}: is {_describe(value)}; allowed: a tensor, or three (compressed, selected, window)")
    return tuple(value)


def _table(blocks: Optional[Tensor]) -> Optional[Tensor]:
    if blocks is None:
        return None
    _whole_numbers("blocks", blocks)
    if blocks.dtype == torch.int32:
        return blocks
    # Beyond int32 is beyond every document: it must not come back as another number.
    return blocks.clamp(-2, torch.iinfo(torch.int32).max).int()


def _packing(cu_seqlens: Optional[Tensor]) -> Optional[Tensor]:
    if cu_seqlens is None:
        return None
    _whole_numbers("cu_seqlens", cu_seqlens)
    if not cu_seqlens.is_cpu:
        if cu_seqlens.is_meta:
            raise ValueError(f"cu_seqlens: is {_describe(cu_seqlens)}; allowed: numbers that can be read, best on the CPU")
        cu_seqlens = cu_seqlens.cpu()
    return cu_seqlens if cu_seqlens.dtype == torch.int32 else _OPS.narrow_bounds.default(cu_seqlens)


def _whole_numbers(name: str, value: Tensor) -> None:
    if not isinstance(value, Tensor) or value.dtype not in _INDICES:
        raise TypeError(f"{name}: is {_describe(value)}; allowed: a tensor of int32 or int64")


def _describe(value) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)} on {value.device}"
    if isinstance(value, (tuple, list)):
        return f"{len(value)} things in a {type(value).__name__}"
    return type(value).__name__


def _learned(name: str, x: Tensor, phi: PhiWeights, geometry: Geometry, cu_seqlens: Optional[Tensor]) -> Tensor:
    if _casts(x):
        x = x.to(torch.get_autocast_dtype(x.device.type))
    D = x.shape[3]
    shapes = {"position": (geometry.l, D), "fc1": (D, geometry.l * D), "fc2": (D, D)}
    for part, shape in shapes.items():
        weight = getattr(phi, part)
        if not isinstance(weight, Tensor):
            raise TypeError(f"phi_{name}.{part}: is {_describe(weight)}; allowed: a tensor")
        like = weight.dtype == x.dtype or _casts(x)
        if tuple(weight.shape) != shape or weight.device != x.device or not like:
            raise ValueError(
                f"phi_{name}.{part}: is {_describe(weight)}; allowed: {list(shape)} of the dtype and device of {name}, "
                f"which is {_describe(x)}"
            )
    bounds = [0, x.shape[1]] if cu_seqlens is None else cu_seqlens.tolist()
    blocks = []
    for begin, end in zip(bounds, bounds[1:]):
        if end - begin >= geometry.l:
            blocks.append(x[:, begin:end].unfold(1, geometry.l, geometry.d).transpose(3, 4))  # [B,N_c,G,l,D]
    if not blocks:
        return x[:, :0]
    rows = torch.cat(blocks, 1) + phi.position
    linear, silu = torch.nn.functional.linear, torch.nn.functional.silu
    return linear(silu(linear(rows.flatten(3), phi.fc1)), phi.fc2)


_told: set[Optional[int]] = set()


def _tell_of_missing_kernels(q: Tensor, backend: str) -> None:
    """Once for a GPU whose machine code this build does not hold: sdpa serves it, slowly."""
    if backend != "auto" or not q.is_cuda or torch.compiler.is_compiling() or q.get_device() in _told:
        return
    _told.add(q.get_device())
    reason = _OPS.refused_architecture(*torch.cuda.get_device_capability(q.device))
    if reason:
        warnings.warn(f"nsa: {q.device} has no kernels of ours and is served by sdpa, slowly: {reason}", stacklevel=3)
