"""Everything that can go wrong, as the answer that the client gets."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
LONGEST = 20_000  # characters of a message or a traceback: an exception may carry a whole tensor in its text


class Failure(Exception):
    """A request that cannot be served. `kind` is the contract's word for whose mistake it is."""

    def __init__(self, kind: str, message: str, type_name: str = "", trace: str = ""):
        super().__init__(message)
        self.kind = kind
        self.answer = {"kind": kind, "type": type_name, "message": _cut(message), "traceback": _cut(trace)}


def raised(error: BaseException, kind: str, adapter: str) -> Failure:
    """What somebody else's code raised, with a traceback that begins at the adapter."""
    try:
        message = str(error)
    except Exception:
        message = "(an exception whose text cannot be had)"
    return Failure(kind, message, type(error).__name__, _traceback(error, adapter))


def raised_in_call(error: BaseException, adapter: str) -> Failure:
    """The same for a call of one of the adapter's functions, where the exception itself says the kind."""
    if isinstance(error, NotImplementedError):
        return raised(error, "unsupported", adapter)
    return raised(error, "cuda" if is_cuda(error) else "exception", adapter)


def raised_in_backward(failure: Failure) -> Failure:
    """Gradients are claimed for all that is served: a pass back that is not implemented breaks that claim."""
    if failure.kind == "unsupported":
        failure.kind = failure.answer["kind"] = "exception"
    return failure


_interrupts: list[int] = []  # the SIGINTs that came


def watch_interrupts() -> None:
    """A user's SIGINT ends this process as ever; a KeyboardInterrupt without one is an exception like any other."""

    def note(number: int, frame: object) -> None:
        _interrupts.append(number)
        signal.default_int_handler(number, frame)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, note)


def is_interrupt(error: BaseException) -> bool:
    """Raised because of a SIGINT, and no failure of anybody's."""
    return isinstance(error, KeyboardInterrupt) and bool(_interrupts)


def is_cuda(error: BaseException) -> bool:
    """Raised by the GPU or for want of its memory. By name: torch has called these errors several things."""
    names = {cls.__name__ for cls in type(error).__mro__}
    if names & {"OutOfMemoryError", "AcceleratorError"}:
        return True
    return isinstance(error, RuntimeError) and "CUDA error" in str(error)


def cuda_is_lost() -> bool:
    """After some errors no call to the GPU succeeds again in this process."""
    cuda = sys.modules["torch"].cuda
    try:
        if cuda.is_initialized():
            cuda.synchronize()
    except Exception:
        return True
    return False


def _traceback(error: BaseException, adapter: str) -> str:
    """From the adapter's first frame on. Without one, from the first frame that is not ours."""
    ours = os.path.join(HERE, "")
    frames = traceback.extract_tb(error.__traceback__)
    files = [os.path.abspath(frame.filename) for frame in frames]
    if adapter in files:
        skipped = files.index(adapter)
    else:
        skipped = len(list(itertools.takewhile(lambda file: file.startswith(ours), files)))
    trace = error.__traceback__
    for _ in range(skipped):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[:LONGEST] + f"... ({len(text) - LONGEST} characters more)"
