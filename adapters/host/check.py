"""host.py --check ADAPTER.py: for the person who writes an adapter. Says what is wrong with it, or what it claims.

It calls every claimed function once with small inputs that the limits allow, batched and packed as far as claimed,
and looks at shapes, dtypes and devices. Whether the numbers are right is for the suites to say.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from . import calls, samples
from .adapter import Adapter
from .description import WITH_LSE
from .errors import Failure

SOUND, MISTAKEN, UNLOADABLE = 0, 2, 4
NOT_TRIED = ("unsupported", "device")


def main(path: str) -> int:
    """Prints what is to be said; the exit code."""
    try:
        adapter = Adapter(path)
    except Failure as failure:
        return _not_loaded(path, failure)
    mistakes = [str(mistake) for mistake in adapter.mistakes]
    notes: list[str] = []
    if not mistakes:
        for name, failure in _tried(adapter):
            if failure.kind in NOT_TRIED:
                notes.append(f"not tried: {failure}")
            else:
                mistakes.append(_mistake(adapter, name, failure))
    for line in dict.fromkeys(mistakes or [*_claims(adapter.description), *notes]):  # each once
        print(line)
    return MISTAKEN if mistakes else SOUND


def _not_loaded(path: str, failure: Failure) -> int:
    """An import that fails is not the adapter's mistake: a package may be missing. A describe() that fails is."""
    told = failure.answer
    if failure.kind == "import":
        print(f"{path}: cannot be loaded: {told['type']}: {told['message']}")
    else:
        print(f"{path}:1: describe() = {told['type'] or 'missing'}: {told['message']}")
    print(told["traceback"], end="")
    return UNLOADABLE if failure.kind == "import" else MISTAKEN


def _tried(adapter: Adapter) -> Iterator[tuple[str, Failure]]:
    """Calls what is claimed; what failed, with the function's name."""
    device = "cpu" if "cpu" in adapter.description["device"] else "cuda"
    if device == "cuda" and not torch.cuda.is_available():
        yield "describe", Failure("device", "it runs on CUDA alone and this torch sees no GPU")
        return
    silent = []  # of every function that may return a log-sum-exp: did it return none?
    for case in samples.cases(adapter.description, device):
        try:
            outputs, changed = _called(adapter, case)
        except Failure as failure:
            silent.append(False)  # nobody knows
            yield case.op, failure
            continue
        if changed:
            message = f"{case.op} = wrote into {', '.join(changed)}: inputs stay as they come"
            yield case.op, Failure("exception", message)
        if case.op in WITH_LSE:
            silent.append(outputs["lse"] is None)
    if adapter.description["lse"] is not None and silent and all(silent):
        yield "describe", Failure("shape", f"lse = {adapter.description['lse']!r}: None: nothing returned one")


def _called(adapter: Adapter, case: calls.Case) -> tuple[dict, list[str]]:
    """Forward and, with gradients, backward: the outputs, and the inputs that are no longer what they were."""
    call = calls.run(adapter, case)
    if not case.gradients:
        return call.outputs, call.changed
    ones = {name: torch.ones_like(o) for name, o in call.outputs.items() if o is not None and name != "lse"}
    _, changed, _ = calls.backward(adapter, call, ones, keep=False)
    return call.outputs, changed


def _mistake(adapter: Adapter, name: str, failure: Failure) -> str:
    trace = failure.answer["traceback"]
    raised = f"{name} = {failure.answer['type']}: {failure}\n{trace.rstrip()}" if trace else str(failure)
    return f"{adapter.where(name)}: {raised}"


def _claims(description: dict) -> Iterator[str]:
    """A short table."""
    for key, value in description.items():
        if isinstance(value, (list, tuple)):
            value = ", ".join(str(item) for item in value)
        elif isinstance(value, dict):
            value = ", ".join(f"{name} {_short(item)}" for name, item in value.items())
        yield f"{key:<12} {value}"


def _short(limit: object) -> str:
    return " ".join(f"{key} {value}" for key, value in limit.items()) if isinstance(limit, dict) else str(limit)
