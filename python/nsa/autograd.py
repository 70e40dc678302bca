"""What torch has to know of the operators besides their names: shapes of results, gradients, casts of autocast.

Backward operators have no gradients of their own: whoever asks for a second derivative is refused.
"""

import torch

_OPS = torch.ops.nsa
_GEOMETRY = 5  # l, d, l_sel, n_sel, w
_LIBRARY = torch.library.Library("nsa", "IMPL")  # lives as long as what is registered in it


# Shapes. ------------------------------------------------------------------------------------------------------------


def _stats(q):
    return q.new_empty((q.shape[0], q.shape[2], q.shape[1], 2), dtype=torch.float32)


def _output(q, v):
    return q.new_empty((*q.shape[:3], v.shape[3]))


def _blocks(q, k, n_sel):
    return q.new_empty((q.shape[0], q.shape[1], k.shape[2], n_sel), dtype=torch.int32)


def _of_wanted(tensors, wanted):
    return [t.new_empty(t.shape) for t, is_wanted in zip(tensors, wanted) if is_wanted]


@torch.library.register_fake("nsa::compress")
def _(k, v, cu_seqlens, l, d, l_sel, n_sel, w, backend):
    if cu_seqlens is None:
        count = torch.sym_max(0, (k.shape[1] - l) // d + 1)
    else:  # known by the values of cu_seqlens alone
        count = torch.library.get_ctx().new_dynamic_size()
    return tuple(x.new_empty((x.shape[0], count, *x.shape[2:])) for x in (k, v))


@torch.library.register_fake("nsa::compress_backward")
def _(dk_cmp, dv_cmp, S, cu_seqlens, l, d, l_sel, n_sel, w, backend):
    return tuple(x.new_empty((x.shape[0], S, *x.shape[2:])) for x in (dk_cmp, dv_cmp))


def _attended(q, k, v, *_):
    return _output(q, v), _stats(q)


for _name in ("attend_compressed", "attend_selected", "attend_window"):
    torch.library.register_fake(f"nsa::{_name}")(_attended)


@torch.library.register_fake("nsa::select")
def _(q, k_cmp, stats, cu_seqlens, l, d, l_sel, n_sel, w, backend):
    return _blocks(q, k_cmp, n_sel)


@torch.library.register_fake("nsa::combine")
def _(gates, o_cmp, o_sel, o_win, backend):
    return o_cmp.new_empty(o_cmp.shape)


@torch.library.register_fake("nsa::attend")
def _(q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates, blocks, cu_seqlens, l, d, l_sel, n_sel, w, backend):
    outputs = (_output(q, v_cmp) for _ in range(3))
    return _output(q, v_cmp), _blocks(q, k_cmp, n_sel), *outputs, *(_stats(q) for _ in range(3))


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
    torch.library.register_fake(f"nsa::{_name}_backward")(_gradients(_inputs))


# Gradients. ---------------------------------------------------------------------------------------------------------


def _spread(gradients, wanted, inputs):
    """The wanted gradients at their places, None for all the other inputs."""
    following = iter(gradients)
    placed = [next(following) if is_wanted else None for is_wanted in wanted]
    return (*placed, *(None for _ in range(inputs - len(placed))))


def _register(name, differentiable, setup, call, inputs):
    """`setup` keeps in `ctx.rest` what is no tensor; `call(saved, rest, dout, wanted)` gives the wanted gradients."""

    def setup_context(ctx, inputs, output):
        outputs = output if isinstance(output, tuple) else (output,)
        saved, ctx.rest = setup(inputs, outputs)
        ctx.save_for_backward(*saved)
        ctx.mark_non_differentiable(*outputs[1:])
        ctx.set_materialize_grads(False)

    def backward(ctx, dout, *_):
        wanted = list(ctx.needs_input_grad[:differentiable])
        if dout is None or not any(wanted):
            return (None,) * inputs
        return _spread(call(ctx.saved_tensors, ctx.rest, dout, wanted), wanted, inputs)

    torch.library.register_autograd(f"nsa::{name}", backward, setup_context=setup_context)


def _setup_branch(tensors):
    """Of (tensors, cu_seqlens, geometry, backend) with results (o, stats)."""
    return lambda inputs, outputs: ((*inputs[:tensors], *outputs, inputs[tensors]), inputs[tensors + 1 :])


def _call_branch(op):
    def call(saved, rest, dout, wanted):
        *geometry, backend = rest
        return op(dout, *saved, *geometry, wanted, backend)

    return call


for _name, _tensors in {"attend_compressed": 3, "attend_selected": 4, "attend_window": 3}.items():
    _backward = getattr(_OPS, f"{_name}_backward").default
    _register(_name, 3, _setup_branch(_tensors), _call_branch(_backward), _tensors + 2 + _GEOMETRY)
_register(
    "combine",
    4,
    lambda inputs, outputs: (inputs[:4], inputs[4]),
    lambda saved, backend, dout, wanted: _OPS.combine_backward.default(dout, *saved, wanted, backend),
    5,
)
_register(
    "attend",
    8,
    lambda inputs, outputs: ((*inputs[:8], *outputs[1:], inputs[9]), inputs[10:]),
    _call_branch(_OPS.attend_backward.default),
    11 + _GEOMETRY,
)


def _setup_compress(ctx, inputs, output):
    k, _, cu_seqlens, *ctx.rest = inputs
    ctx.save_for_backward(cu_seqlens)
    ctx.tokens = k.shape[1]


def _compress_backward(ctx, dk_cmp, dv_cmp):
    dk, dv = _OPS.compress_backward.default(dk_cmp, dv_cmp, ctx.tokens, *ctx.saved_tensors, *ctx.rest)
    return dk, dv, *(None for _ in range(2 + _GEOMETRY))


torch.library.register_autograd("nsa::compress", _compress_backward, setup_context=_setup_compress)


def _refuse(name):
    def backward(ctx, *_):
        raise NotImplementedError(
            f"derivative for nsa::{name} is not implemented (a second derivative of our operators; plain PyTorch has it)"
        )

    torch.library.register_autograd(f"nsa::{name}", backward)


for _name in ("compress", "attend_compressed", "attend_selected", "attend_window", "combine", "attend"):
    _refuse(f"{_name}_backward")


# The choice of blocks is not differentiated.
torch.library.register_autograd("nsa::select", lambda ctx, *_: (None,) * (5 + _GEOMETRY), setup_context=lambda ctx, inputs, output: ctx.mark_non_differentiable(output))


# Autocast: 16 bits for what the kernels multiply. Gates and statistics stay as they are. -----------------------------

_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.AutocastCUDA
)


def _register_autocast(name, first, last, device):
    op = getattr(_OPS, name).default

    def kernel(*args):
        dtype = torch.get_autocast_dtype(device)
        cast = (x.to(dtype) if x.dtype in (torch.float32, torch.float16, torch.bfloat16) else x for x in args[first:last])
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
            return op(*args[:first], *cast, *args[last:])

    _LIBRARY.impl(name, kernel, f"Autocast{device.upper()}")


for _device in ("cpu", "cuda"):
    for _name, _first, _last in (
        ("compress", 0, 2),
        ("attend_compressed", 0, 3),
        ("select", 0, 2),
        ("attend_selected", 0, 3),
        ("attend_window", 0, 3),
        ("combine", 1, 4),
        ("attend", 0, 7),
    ):
        _register_autocast(_name, _first, _last, _device)
