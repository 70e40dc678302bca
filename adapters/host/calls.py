"""One call of one function of the adapter: inputs in, checked outputs out, the graph kept for a backward pass."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable, NamedTuple

import torch

from .adapter import Adapter
from .arena import NAMES
from .description import PARAMETERS, returns
from .errors import Failure, raised_in_backward

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Geometry:
    """Block sizes in tokens. Frozen: an adapter cannot change it for the next call."""

    l: int  # noqa: E741  the paper's name
    d: int
    l_sel: int
    n_sel: int
    w: int


class Case(NamedTuple):
    """What is to be computed. The inputs are on the CPU or, where they came through its memory, on the GPU, and stay as
    they came."""

    op: str
    inputs: Tensors
    geometry: Geometry | None
    cu_seqlens: list[int] | None
    device: str
    gradients: Sequence[str]


class Call(NamedTuple):
    """What was computed, with everything that a backward pass needs."""

    case: Case
    inputs: Tensors  # what the adapter was given, on its device
    outputs: dict[str, Any]
    changed: list[str]
    seconds: float


class _Expected(NamedTuple):
    shape: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]


def run(adapter: Adapter, case: Case) -> Call:
    """The forward pass."""
    _require_claimed(adapter, case)
    inputs, invoke = _prepare(adapter, case)
    with _gradients_wanted(case):
        returned, seconds = _timed(case.device, invoke)
    outputs = _outputs(adapter, case, returned)
    return Call(case, inputs, outputs, _changed(case, inputs), seconds)


def backward(adapter: Adapter, call: Call, cotangents: Tensors, keep: bool) -> tuple[Tensors, list[str], float]:
    """Gradients of the inputs that were asked for (None where nothing flows), inputs changed, seconds."""
    case = call.case
    names = [name for name in cotangents if call.outputs[name] is not None and call.outputs[name].requires_grad]
    wanted = [call.inputs[name] for name in case.gradients]
    given = [cotangents[name].to(case.device) for name in names]
    found, seconds = [None] * len(wanted), 0.0
    if names:
        outputs = [call.outputs[name] for name in names]
        try:
            found, seconds = _timed(case.device, lambda: adapter.guard(_grad, outputs, wanted, given, keep))
        except Failure as failure:
            raise raised_in_backward(failure) from None
    return dict(zip(case.gradients, found)), _changed(case, call.inputs), seconds


def _require_claimed(adapter: Adapter, case: Case) -> None:
    """Only what the adapter says that it does is asked of it."""
    adapter.require_sound()
    claims = adapter.description
    # Gates are fp32 beside narrower branches.
    typed = "o_cmp" if case.op == "combine" else next(iter(case.inputs))
    dtype = NAMES[case.inputs[typed].dtype]
    asked = {"computes": case.op, "device": case.device, "dtypes": dtype}
    if case.op != "combine":
        asked["layouts"] = "packed" if case.cu_seqlens is not None else "batched"
    for key, value in asked.items():
        if value not in claims[key]:
            raise Failure("unsupported", f"{case.op}: {value} is not among its {key}: {', '.join(claims[key])}")
    if case.gradients and not claims["gradients"]:
        raise Failure("unsupported", f"{case.op}: it claims no gradients")
    if case.device == "cuda" and not torch.cuda.is_available():
        raise Failure("device", "cuda: this torch sees no GPU here")


def _prepare(adapter: Adapter, case: Case) -> tuple[Tensors, Callable[[], Any]]:
    """Inputs of the call's own, so that it cannot spoil ours, and the call."""
    inputs = {name: tensor.to(case.device, copy=True) for name, tensor in case.inputs.items()}
    for name in case.gradients:
        inputs[name].requires_grad_()
    positional, keywords = PARAMETERS[case.op]
    named = {"geometry": case.geometry, "cu_seqlens": None, "blocks": inputs.get("blocks")}
    if case.cu_seqlens is not None:
        named["cu_seqlens"] = inputs["cu_seqlens"] = torch.tensor(case.cu_seqlens, dtype=torch.int32, device="cpu")
    arguments = [inputs[name] for name in positional]
    given = {name: named[name] for name in keywords}
    return inputs, lambda: adapter.call(case.op, *arguments, **given)


def _gradients_wanted(case: Case) -> contextlib.AbstractContextManager:
    return torch.enable_grad() if case.gradients else torch.no_grad()


def _grad(outputs: Sequence, inputs: Sequence, cotangents: Sequence, keep: bool) -> Sequence:
    return torch.autograd.grad(outputs, inputs, cotangents, retain_graph=keep, allow_unused=True)


def _changed(case: Case, inputs: Tensors) -> list[str]:
    """The inputs that are no longer the bits that came."""
    changed = [name for name, came in case.inputs.items() if not _same_bits(came, inputs[name].detach())]
    if case.cu_seqlens is not None and inputs["cu_seqlens"].tolist() != case.cu_seqlens:
        changed.append("cu_seqlens")
    return changed


def _same_bits(came: torch.Tensor, now: torch.Tensor) -> bool:
    if came.shape != now.shape or came.dtype != now.dtype:
        return False
    return torch.equal(came.reshape(-1).view(torch.uint8), now.to(came.device).reshape(-1).view(torch.uint8))


def _timed(device: str, call: Callable[[], Any]) -> tuple[Any, float]:
    """What it returns, and its seconds: by events on a GPU, by the clock on a CPU."""
    if device != "cuda":
        start = time.perf_counter()
        return call(), time.perf_counter() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    returned = call()
    end.record()
    torch.cuda.synchronize()
    return returned, begin.elapsed_time(end) / 1000.0


def _outputs(adapter: Adapter, case: Case, returned: Any) -> dict[str, Any]:
    """What came back, by name, after everything that the client relies on was looked at."""
    named = _by_name(adapter, case.op, returned)
    for name, expected in _expected(case).items():
        if name in named and not (name == "lse" and named[name] is None):
            _check(f"{case.op}.{name}", named[name], expected, case.device)
    return named


def _by_name(adapter: Adapter, op: str, returned: Any) -> dict[str, Any]:
    """The returned values under their names; "lse" is None where none came."""
    names = returns(op)
    values = returned if isinstance(returned, (tuple, list)) else (returned,)
    if "lse" in names:
        if len(values) == 2 and adapter.description["lse"] is None:
            raise Failure("shape", f"{op} = 2 values: allowed is o alone, for describe() says lse = None")
        names = names if len(values) == 2 else names[:1]
    if len(values) != len(names):
        raise Failure("shape", f"{op} = {len(values)} values: allowed is {', '.join(names)}")
    named = dict(zip(names, values))
    return named if "o" not in named else {"lse": None, **named}


def _check(what: str, value: Any, expected: _Expected, device: str) -> None:
    shape = list(expected.shape)
    if not isinstance(value, torch.Tensor):
        raise Failure("shape", f"{what} = {type(value).__name__}: allowed is a tensor {shape}")
    if value.layout != torch.strided:
        raise Failure("shape", f"{what} = {value.layout}: allowed is a dense tensor {shape}")
    if value.shape != expected.shape:
        raise Failure("shape", f"{what} = {list(value.shape)}: allowed is {shape}")
    if value.dtype not in expected.dtypes:
        allowed = " or ".join(NAMES[dtype] for dtype in expected.dtypes)
        raise Failure("dtype", f"{what} = {NAMES.get(value.dtype, value.dtype)}: allowed is {allowed}")
    if value.device.type != device:
        raise Failure("device", f"{what} = {value.device}: allowed is {device}")


def _expected(case: Case) -> dict[str, _Expected]:
    """Shapes and dtypes of the outputs, from those of the inputs."""
    x = case.inputs
    if case.op == "compress":
        return {f"{name}_cmp": _Expected(_compressed(case, x[name]), (x[name].dtype,)) for name in ("k", "v")}
    if case.op == "combine":
        return {"o": _Expected(x["o_cmp"].shape, (x["o_cmp"].dtype,))}
    q = x["q"]
    batch, tokens, heads = q.shape[:3]
    if case.op == "select":
        shape = (batch, tokens, x["k_cmp"].shape[2], case.geometry.n_sel)
        return {"blocks": _Expected(shape, (torch.int32,))}
    values = next(x[name] for name in ("v", "v_cmp") if name in x)
    lse_types = (torch.float32, torch.float64) if q.dtype == torch.float64 else (torch.float32,)
    return {
        "o": _Expected((batch, tokens, heads, values.shape[3]), (q.dtype,)),
        "lse": _Expected((batch, heads, tokens), lse_types),
    }


def _compressed(case: Case, x: torch.Tensor) -> tuple[int, ...]:
    bounds = case.cu_seqlens or [0, x.shape[1]]
    lengths = [end - begin for begin, end in zip(bounds, bounds[1:])]
    return (x.shape[0], blocks_of(case.geometry, lengths), *x.shape[2:])


def blocks_of(geometry: Geometry, lengths: Sequence[int]) -> int:
    """Compressed blocks of documents of these lengths together."""
    return sum((length - geometry.l) // geometry.d + 1 for length in lengths if length >= geometry.l)
