"""Fake kernels: the shapes of what the operators give, for whoever traces them, and for tensors without memory (meta)."""

import torch

from nsa.arguments import BACKENDS, SIZES, one_of


def _fake(name):
    """Registers a fake kernel that first looks at what decides whether the operator can run at all: one tensor without
    memory among others brings a call here, and its result would be memory that nobody wrote."""

    def register(kernel):
        names = [argument.name for argument in getattr(torch.ops.nsa, name).default._schema.arguments]

        def checked(*args):
            _check(name, dict(zip(names, args)))
            return kernel(*args)

        torch.library.register_fake(f"nsa::{name}")(checked)
        return kernel

    return register


def _check(name, args):
    tensors = {key: value for key, value in args.items() if isinstance(value, torch.Tensor)}
    first = next(iter(tensors))
    device = tensors[first].device
    for key, value in tensors.items():
        own = value.device
        if own != device and not (key == "cu_seqlens" and own.type == "cpu"):
            raise ValueError(f"{name}: {key} is on {own}; allowed: {'the CPU' if key == 'cu_seqlens' else f'{device}, as {first}'}")
    if "backend" in args:
        one_of("backend", args["backend"], BACKENDS)
    if "l" in args:
        l, d, l_sel, n_sel, w = (args[size] for size in SIZES)  # noqa: E741
        if not (d >= 1 and l >= 1 and l % d == 0 and l_sel % d == 0 and l <= l_sel and n_sel >= 3 and w >= 1):
            raise ValueError(
                f"{name}: geometry l={l} d={d} l'={l_sel} n={n_sel} w={w}; allowed: d divides l and l', l <= l', n >= 3, w >= 1"
            )


def _stats(q):
    return q.new_empty((q.shape[0], q.shape[2], q.shape[1], 2), dtype=torch.float32)


def _output(q, v):
    return q.new_empty((*q.shape[:3], v.shape[3]))


def _blocks(q, k, n_sel):
    return q.new_empty((q.shape[0], q.shape[1], k.shape[2], n_sel), dtype=torch.int32)


def _of_wanted(tensors, wanted):
    return [t.new_empty(t.shape) for t, is_wanted in zip(tensors, wanted) if is_wanted]


@_fake("narrow_bounds")
def _(cu_seqlens):
    return cu_seqlens.new_empty(cu_seqlens.shape, dtype=torch.int32)


@_fake("compress")
def _(k, v, cu_seqlens, l, d, l_sel, n_sel, w, backend):
    if cu_seqlens is None:
        count = torch.sym_max(0, (k.shape[1] - l) // d + 1)
    else:  # known by the values of cu_seqlens alone
        count = torch.library.get_ctx().new_dynamic_size()
    return tuple(x.new_empty((x.shape[0], count, *x.shape[2:])) for x in (k, v))


@_fake("compress_backward")
def _(dk_cmp, dv_cmp, S, cu_seqlens, l, d, l_sel, n_sel, w, backend):
    return tuple(x.new_empty((x.shape[0], S, *x.shape[2:])) for x in (dk_cmp, dv_cmp))


def _attended(q, k, v, *_):
    return _output(q, v), _stats(q)


for _name in ("attend_compressed", "attend_selected", "attend_window"):
    _fake(_name)(_attended)


@_fake("select")
def _(q, k_cmp, stats, cu_seqlens, l, d, l_sel, n_sel, w, backend):
    return _blocks(q, k_cmp, n_sel)


@_fake("combine")
def _(gates, o_cmp, o_sel, o_win, backend):
    return o_cmp.new_empty(o_cmp.shape)


@_fake("attend")
def _(q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates, blocks, cu_seqlens, l, d, l_sel, n_sel, w, backend):
    outputs = (_output(q, v_cmp) for _ in range(3))
    return _output(q, v_cmp), _blocks(q, k_cmp, n_sel), *outputs, *(_stats(q) for _ in range(3))


@_fake("attention")
def _(q, k, v, k_sel, v_sel, k_win, v_win, gates, blocks, cu_seqlens, l, d, l_sel, n_sel, w, backend):
    outputs = [_output(q, v) for _ in range(4)]
    stats = [_stats(q) for _ in range(3)]
    count = torch.sym_max(0, (k.shape[1] - l) // d + 1) if cu_seqlens is None else k.shape[1] // d
    cmp = (x.new_empty((x.shape[0], count, *x.shape[2:])) for x in (k, v))
    return outputs[0], _blocks(q, k, n_sel), *outputs[1:], *stats, *cmp


@_fake("attention_backward")
def _(dout, q, k_cmp, v_cmp, *rest):
    wanted = rest[-2]
    tokens = (x.new_empty((x.shape[0], q.shape[1], *x.shape[2:])) for x in (k_cmp, v_cmp))
    return _of_wanted((q, *tokens, *rest[:5]), wanted)


def _gradients(inputs):
    """Of a backward operator (dout, inputs, ..., wanted, backend)."""
    return lambda dout, *rest: _of_wanted(rest[:inputs], rest[-2])


for _name, _inputs in {
    "attend_compressed": 3,
    "attend_selected": 3,
    "attend_window": 3,
    "combine": 4,
    "attend": 8,
}.items():
    _fake(f"{_name}_backward")(_gradients(_inputs))
