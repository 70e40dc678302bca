"""Fake kernels: the shapes of what the operators give, for whoever traces them, and for tensors without memory (meta).
What an operator refuses of shapes, dtypes and devices its fake refuses too (contract.py)."""

import torch

from nsa.arguments import SIZES
from nsa.contract import Contract, check, check_backend, check_bounds, check_geometry, check_memory, compressed_blocks, number


def _fake(name):
    """Registers a fake kernel; `kernel` is given the arguments of the operator, the sizes of its geometry as one."""

    def register(kernel):
        names = [argument.name for argument in getattr(torch.ops.nsa, name).default._schema.arguments]
        face = name.removesuffix("_backward")

        def checked(*args):
            given = dict(zip(names, args))
            check_memory(name, {key: value for key, value in given.items() if isinstance(value, torch.Tensor)})
            if "l" in given:
                given["geometry"] = tuple(given.pop(size) for size in SIZES)
                check_geometry(face, given["geometry"])
            backend = given.pop("backend", "auto")
            result = kernel(**given)
            check_backend(backend)
            return result

        torch.library.register_fake(f"nsa::{name}")(checked)
        return kernel

    return register


def _stats(q):
    return q.new_empty((q.shape[0], q.shape[2], q.shape[1], 2), dtype=torch.float32)


def _output(q, v):
    return q.new_empty((*q.shape[:3], v.shape[3]))


def _blocks(q, k, n_sel):
    return q.new_empty((q.shape[0], q.shape[1], k.shape[2], n_sel), dtype=torch.int32)


def _of_wanted(tensors, wanted):
    return [t.new_empty(t.shape) for t, is_wanted in zip(tensors, wanted, strict=True) if is_wanted]


@_fake("narrow_bounds")
def _(cu_seqlens):
    return cu_seqlens.new_empty(cu_seqlens.shape, dtype=torch.int32)


@_fake("compress")
def _(k, v, cu_seqlens, geometry):
    contract = Contract("compress")
    contract.activation("k", k, "[B,S,G,Dk]")
    contract.activation("v", v, "[B,S,G,Dv]")
    contract.like("v", v, "k", k)
    for i, what in enumerate("BSG"):
        contract.size("v", v, i, k.shape[i], what)
    contract.packing(cu_seqlens, k, "k")
    if cu_seqlens is None:
        count = compressed_blocks(k.shape[1], geometry)
    else:  # known by the values of cu_seqlens alone
        count = torch.library.get_ctx().new_dynamic_size()
    return tuple(x.new_empty((x.shape[0], count, *x.shape[2:])) for x in (k, v))


@_fake("compress_backward")
def _(dk_cmp, dv_cmp, S, cu_seqlens, geometry):
    def given(good):
        words = "dk_cmp and dv_cmp are not [B,N_c,G,D] of S tokens; allowed: what compress gave"
        check(good, lambda: f"compress_backward: {words}")

    given(dk_cmp.dim() == 4 and dv_cmp.dim() == 4)
    given(S >= 1)
    if cu_seqlens is None:
        given(dk_cmp.shape[1] == compressed_blocks(S, geometry))
    else:
        check_bounds(cu_seqlens)
    Contract("compress_backward").result("dv_cmp", dv_cmp, (*dk_cmp.shape[:3], dv_cmp.shape[3]), dk_cmp.dtype, dk_cmp)
    tokens = tuple(x.new_empty((x.shape[0], S, *x.shape[2:])) for x in (dk_cmp, dv_cmp))
    for x in tokens:  # each is what compress would be given
        Contract("compress").activation("k", x, "[B,S,G,Dk]")
    return tokens


@_fake("attend_compressed")
def _attend_compressed(q, k_cmp, v_cmp, cu_seqlens, geometry):
    Contract("attend_compressed").compressed(q, k_cmp, v_cmp, geometry, cu_seqlens)
    return _output(q, v_cmp), _stats(q)


@_fake("attend_compressed_backward")
def _(dout, q, k_cmp, v_cmp, o, stats, cu_seqlens, geometry, wanted):
    _attend_compressed(q, k_cmp, v_cmp, cu_seqlens, geometry)
    Contract("attend_compressed_backward").results(q, v_cmp, {"dout": dout, "o": o}, {"stats": stats})
    return _of_wanted((q, k_cmp, v_cmp), wanted)


@_fake("select")
def _(q, k_cmp, stats, cu_seqlens, geometry):
    contract = Contract("select")
    contract.compressed_keys(q, k_cmp, geometry, cu_seqlens)
    if stats is not None:
        contract.stats(stats, q)
    return _blocks(q, k_cmp, geometry[3])


@_fake("attend_selected")
def _attend_selected(q, k, v, blocks, cu_seqlens, geometry):
    contract = Contract("attend_selected")
    contract.attention(q, cu_seqlens, "k", k, "v", v)
    contract.blocks(blocks, q, k.shape[2], geometry[3])
    return _output(q, v), _stats(q)


@_fake("attend_selected_backward")
def _(dout, q, k, v, blocks, o, stats, cu_seqlens, geometry, wanted):
    _attend_selected(q, k, v, blocks, cu_seqlens, geometry)
    Contract("attend_selected_backward").results(q, v, {"dout": dout, "o": o}, {"stats": stats})
    return _of_wanted((q, k, v), wanted)


@_fake("attend_window")
def _attend_window(q, k, v, cu_seqlens, geometry):
    Contract("attend_window").attention(q, cu_seqlens, "k", k, "v", v)
    return _output(q, v), _stats(q)


@_fake("attend_window_backward")
def _(dout, q, k, v, o, stats, cu_seqlens, geometry, wanted):
    _attend_window(q, k, v, cu_seqlens, geometry)
    Contract("attend_window_backward").results(q, v, {"dout": dout, "o": o}, {"stats": stats})
    return _of_wanted((q, k, v), wanted)


@_fake("combine")
def _combine(gates, o_cmp, o_sel, o_win):
    contract = Contract("combine")
    contract.gated(gates, o_cmp)
    for name, o in (("o_sel", o_sel), ("o_win", o_win)):
        contract.as_other(name, o, "o_cmp", o_cmp)
    return o_cmp.new_empty(o_cmp.shape)


@_fake("combine_backward")
def _(dout, gates, o_cmp, o_sel, o_win, wanted):
    _combine(gates, o_cmp, o_sel, o_win)
    Contract("combine_backward").result("dout", dout, o_cmp.shape, o_cmp.dtype, o_cmp)
    return _of_wanted((gates, o_cmp, o_sel, o_win), wanted)


def _check_attend(q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates, blocks, cu_seqlens, geometry):
    contract = Contract("attend")
    contract.compressed(q, k_cmp, v_cmp, geometry, cu_seqlens)
    contract.attention(q, cu_seqlens, "k_sel", k_sel, "v_sel", v_sel)
    if blocks is not None:
        contract.blocks(blocks, q, k_sel.shape[2], geometry[3])
    contract.attention(q, cu_seqlens, "k_win", k_win, "v_win", v_win)
    contract.summed(q, k_sel, v_sel, k_win, v_win, gates, k_cmp.shape[2], v_cmp.shape[3])


@_fake("attend")
def _(q, k_cmp, v_cmp, cu_seqlens, geometry, **rest):
    _check_attend(q, k_cmp, v_cmp, cu_seqlens=cu_seqlens, geometry=geometry, **rest)
    outputs = (_output(q, v_cmp) for _ in range(3))
    return _output(q, v_cmp), _blocks(q, k_cmp, geometry[3]), *outputs, *(_stats(q) for _ in range(3))


@_fake("attention")
def _(q, k, v, k_sel, v_sel, k_win, v_win, gates, blocks, cu_seqlens, geometry):
    contract = Contract("attention")
    for k_name, keys, v_name, values in (("k", k, "v", v), ("k_sel", k_sel, "v_sel", v_sel), ("k_win", k_win, "v_win", v_win)):
        contract.attention(q, cu_seqlens, k_name, keys, v_name, values)
    contract.summed(q, k_sel, v_sel, k_win, v_win, gates, k.shape[2], v.shape[3])
    if blocks is not None:
        contract.blocks(blocks, q, k.shape[2], geometry[3])
    outputs = [_output(q, v) for _ in range(4)]
    stats = [_stats(q) for _ in range(3)]
    cmp = (x.new_empty((x.shape[0], _room(k.shape[1], cu_seqlens, geometry), *x.shape[2:])) for x in (k, v))
    return outputs[0], _blocks(q, k, geometry[3]), *outputs[1:], *stats, *cmp


def _room(S, cu_seqlens, geometry):
    """For compressed blocks; a packed batch's are never more."""
    return compressed_blocks(S, geometry) if cu_seqlens is None else S // geometry[1]


_INPUTS = "q k_cmp v_cmp k_sel v_sel k_win v_win gates".split()
_OUTPUTS, _STATS = "o_cmp o_sel o_win".split(), "stats_cmp stats_sel stats_win".split()


@_fake("attend_backward")
def _attend_backward(dout, blocks, cu_seqlens, geometry, wanted, **given):
    inputs = {name: given[name] for name in _INPUTS}
    _check_attend(**inputs, blocks=blocks, cu_seqlens=cu_seqlens, geometry=geometry)
    outputs = {"dout": dout, **{name: given[name] for name in _OUTPUTS}}
    Contract("attend_backward").results(inputs["q"], inputs["v_cmp"], outputs, {name: given[name] for name in _STATS})
    return _of_wanted(inputs.values(), wanted)


@_fake("attention_backward")
def _(q, k_cmp, v_cmp, cu_seqlens, geometry, wanted, **rest):
    S = q.shape[1] if q.dim() == 4 else 0
    if cu_seqlens is not None:
        check_bounds(cu_seqlens)
    room = _room(S, cu_seqlens, geometry)
    for name, x in (("k_cmp", k_cmp), ("v_cmp", v_cmp)):
        words = lambda: f"attention_backward: {name} is not [B,{number(room)},G,D]; allowed: what attention gave"  # noqa: E731,B023
        check(x.dim() == 4, words)
        check(x.shape[1] == room, words)
    _attend_backward(q=q, k_cmp=k_cmp, v_cmp=v_cmp, cu_seqlens=cu_seqlens, geometry=geometry, wanted=wanted, **rest)
    tokens = (x.new_empty((x.shape[0], S, *x.shape[2:])) for x in (k_cmp, v_cmp))
    return _of_wanted((q, *tokens, *(rest[name] for name in _INPUTS[3:])), wanted)
