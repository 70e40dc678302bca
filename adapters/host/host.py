"""Serves one adapter over pipes and a shared arena, or checks it for the person who writes it.

    NSA_ADAPTER_FDS="R,W,M" python -u host.py ADAPTER.py    started by nsa-validate
    python host.py --check ADAPTER.py                       started by a person

Only the standard library is imported before the file descriptors are ours: a torch that cannot be loaded is then an
answer like any other, instead of a process that dies without a word.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import select
import signal
import sys
import warnings
from typing import Any, BinaryIO

HERE = os.path.dirname(os.path.abspath(__file__))
DESCRIPTORS = "NSA_ADAPTER_FDS"
VERDICT = "NSA_ADAPTER_VERDICT"
PACKAGE = "nsa_adapter_host"
MISUSED, UNLOADABLE = 64, 4


def main(arguments: list[str]) -> int:
    """The exit code."""
    _off_the_path()
    _without_numpy_in_silence()
    if len(arguments) == 2 and arguments[0] == "--check":
        _load_package()
        _watch_interrupts()
        return _told(_check(arguments[1]))
    if len(arguments) != 1 or DESCRIPTORS not in os.environ:
        print(f"usage: host.py --check ADAPTER.py (nsa-validate itself sets {DESCRIPTORS})", file=sys.stderr)
        return MISUSED
    requests, answers, arena = _take_descriptors()
    _die_with_parent()
    _end_the_group_with_us()
    _load_package()
    _watch_interrupts()
    try:
        return _serve(_server(arguments[0], arena), requests, answers)
    except (BrokenPipeError, KeyboardInterrupt):
        return 0


def _off_the_path() -> None:
    """Python puts a script's folder first on sys.path. Our file names must not hide what an adapter imports."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != HERE]


def _without_numpy_in_silence() -> None:
    """A torch without NumPy says so in three lines when it is imported. Nobody here needs NumPy, and what an adapter
    says would be lost behind them."""
    warnings.filterwarnings("ignore", "Failed to initialize NumPy", UserWarning)


def _watch_interrupts() -> None:
    from nsa_adapter_host import errors

    errors.watch_interrupts()


def _load_package() -> None:
    """Makes our modules importable under one name of their own."""
    start = os.path.join(HERE, "__init__.py")
    spec = importlib.util.spec_from_file_location(PACKAGE, start, submodule_search_locations=[HERE])
    sys.modules[PACKAGE] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[PACKAGE])


def _take_descriptors() -> tuple[BinaryIO, BinaryIO, int]:
    """The two pipes as files and the arena as a descriptor, kept from the adapter's own children."""
    descriptors = [int(number) for number in os.environ.pop(DESCRIPTORS).split(",")]
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    requests, answers, arena = descriptors
    return os.fdopen(requests, "rb"), os.fdopen(answers, "wb"), arena


def _die_with_parent() -> None:
    """Where Linux can do it: no adapter goes on burning a machine after the run that it belonged to."""
    parent_death_signal = 1  # PR_SET_PDEATHSIG
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGKILL, 0, 0, 0)


def _end_the_group_with_us() -> None:
    """What an adapter has started does not outlive us, not even a SIGKILL: a process of our group waits for our end and
    then ends the group. It is nobody's child, so that an adapter which waits for its children does not wait for it, and
    it holds nothing open. Where the group is not our own, or the system cannot tell of an end, there is none."""
    if os.getpgrp() != os.getpid() or not hasattr(os, "pidfd_open"):
        return
    try:
        end = os.pidfd_open(os.getpid())
        child = os.fork()
    except OSError:  # no process is left, or the kernel is old: the client still ends the group when it can
        return
    if child == 0:
        if os.fork() == 0:
            _wait_and_end_the_group(end)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(end)


def _wait_and_end_the_group(end: int) -> None:
    os.closerange(0, end)  # all of ours: higher ones were closed when we were started
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    select.select([end], [], [])
    os.kill(0, signal.SIGKILL)


def _check(adapter: str) -> int:
    failure = _want_of_torch(adapter)
    if failure is not None:
        print(f"{adapter}: cannot be loaded: torch cannot be imported: {failure}")
        return UNLOADABLE
    from nsa_adapter_host import check

    return check.main(adapter)


def _told(code: int) -> int:
    """The exit code, also to whoever started us: it does not take another program's exit code of 0 for ours."""
    verdict = os.environ.get(VERDICT)
    if verdict is not None:
        os.write(int(verdict), bytes([code]))
    return code


def _server(adapter: str, arena: int) -> Any:
    """Whoever answers: the server, or, without a torch, the reason why there is none."""
    failure = _want_of_torch(adapter)
    if failure is not None:
        from nsa_adapter_host.torchless import Torchless

        return Torchless(failure)
    from nsa_adapter_host.server import Server

    return Server(adapter, arena)


def _want_of_torch(adapter: str) -> Any:
    """Why torch cannot be imported, or None. It is tried on its own, so that it is known whose fault it is."""
    from nsa_adapter_host import errors

    try:
        import torch  # noqa: F401
    except BaseException as error:
        if errors.is_interrupt(error):
            raise
        return errors.raised(error, "torch", adapter)
    return None


def _serve(server: Any, requests: BinaryIO, answers: BinaryIO) -> int:
    """One request at a time, until the client leaves, closes its pipe, or the GPU has become useless."""
    for line in requests:
        answer = server.answer(line)
        answers.write(json.dumps(answer, allow_nan=False).encode() + b"\n")
        answers.flush()
        if server.finished:
            return server.exit_code
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    # Threads and exit handlers of what the adapter imported must not keep a finished host alive.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
