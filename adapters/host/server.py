"""Answers the client's requests, one at a time. No mistake of anybody's ends it."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import sys
from typing import Any, NamedTuple

import torch

from . import calls, description, errors, saved
from .adapter import Adapter
from .arena import Arena
from .calls import Call, Case, Geometry
from .description import FUNCTIONS, PARAMETERS
from .device_arena import DeviceArena
from .errors import Failure
from .requests import Request, parse
from .saved import Saved

GEOMETRY = ("l", "d", "l_sel", "n_sel", "w")


class Room(NamedTuple):
    """Where results may begin."""

    host: int  # in the arena
    device: int | None  # in the memory of the GPU


class Server:
    """Holds the adapter, the arenas, and the graphs that wait for a backward pass."""

    def __init__(self, adapter: str, arena: int):
        self.finished = False
        self.exit_code = 0
        self._path = os.path.abspath(adapter)  # before the adapter can change the folder
        self._loaded: Adapter | Failure | None = None
        self._arena = Arena(arena)
        self._device_arena = DeviceArena()
        self._graphs: dict[int, Call] = {}
        self._last_call = 0
        self._does = {
            "describe": self._describe,
            "share": self._share,
            "forward": self._forward,
            "backward": self._backward,
            "release": self._release,
            "save": self._save,
            "memory": self._memory,
            "seed": self._seed,
            "leave": self._leave,
        }

    def answer(self, line: bytes) -> dict:
        request_id = None
        try:
            request = parse(line)
            request_id = request.id
            if request.do not in self._does:
                raise Failure("request", f"do = {request.do}: allowed are {', '.join(self._does)}")
            return {"id": request_id, "ok": self._does[request.do](request)}
        except Failure as failure:
            return {"id": request_id, "error": self._told(failure)}
        except BaseException as error:  # outside its functions: no memory for an input, or code of a tensor of its own
            if errors.is_interrupt(error):
                raise
            kind = "cuda" if errors.is_cuda(error) else "exception"
            return {"id": request_id, "error": self._told(errors.raised(error, kind, self._path))}

    def _told(self, failure: Failure) -> dict:
        """After an error from which a GPU does not recover the process is of no use."""
        if failure.kind == "cuda" and errors.cuda_is_lost():
            self.finished, self.exit_code = True, 1
        return failure.answer

    def _adapter(self) -> Adapter:
        """Loaded once: a second import of what failed half-way would fail differently."""
        if self._loaded is None:
            try:
                self._loaded = Adapter(self._path)
            except Failure as failure:
                self._loaded = failure
        if isinstance(self._loaded, Failure):
            raise self._loaded.with_traceback(None)
        return self._loaded

    def _describe(self, request: Request) -> dict:
        adapter = self._adapter()
        if not description.is_plain(adapter.description):  # the answer could not hold it
            adapter.require_sound()
        return {
            "description": adapter.description,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "executable": sys.executable,
            "cuda": torch.cuda.is_available(),
            "file": adapter.file,
            "mistakes": [mistake._asdict() for mistake in adapter.mistakes],
        }

    def _share(self, request: Request) -> dict:
        """Opens memory of a GPU in the place of what was open before, and shows that it reads and writes it."""
        why = self._device_arena.open(request.get("memory", dict))
        if why:
            return {"shared": False, "why": why}
        self._arena.resize(request.get("arena", int))
        probe = self._read("probe", request.get("probe", dict))
        outputs = self._write({"probe": probe + 1}, _room(request))
        return {"shared": True, "outputs": outputs, "arena": self._arena.size}

    def _forward(self, request: Request) -> dict:
        case = self._case(request)
        room = _room(request)
        call = calls.run(self._adapter(), case)
        outputs = self._write(call.outputs, room)
        name = None
        if case.gradients:
            self._last_call += 1
            name = self._last_call
            self._graphs[name] = call
        return {
            "outputs": outputs,
            "call": name,
            "requires_grad": any(o is not None and o.requires_grad for o in call.outputs.values()),
            "changed_inputs": call.changed,
            "seconds": call.seconds,
            "arena": self._arena.size,
        }

    def _backward(self, request: Request) -> dict:
        number, keep, room = request.get("call", int), request.get("keep", bool), _room(request)
        call = self._graph(number)
        self._arena.resize(request.get("arena", int))
        given = {name: self._read(name, wire) for name, wire in request.get("cotangents", dict).items()}
        for name, cotangent in given.items():
            _require_fitting(name, cotangent, call.outputs.get(name))
        try:
            gradients, changed, seconds = calls.backward(self._adapter(), call, given, keep)
        finally:
            if not keep:
                del self._graphs[number]
        return {
            "gradients": self._write(gradients, room),
            "changed_inputs": changed,
            "seconds": seconds,
            "arena": self._arena.size,
        }

    def _release(self, request: Request) -> dict:
        number = request.get("call", int)
        self._graph(number)
        del self._graphs[number]
        return {}

    def _save(self, request: Request) -> dict:
        """Writes a call down, without making it: it may be the one that ended the process before."""
        case = self._case(request)
        cotangents, expected = (
            {name: self._arena.read(name, wire) for name, wire in request.get(part, dict).items()}
            for part in ("cotangents", "expected")
        )
        call = Saved(case, cotangents, expected, request.get("wrote", bool), request.get("title", str))
        saved.write(request.get("folder", str), self._path, call)
        return {}

    def _memory(self, request: Request) -> dict:
        _give_back()
        allocated = torch.cuda.memory_allocated() if torch.cuda.is_available() else None
        return {"resident": _resident(), "cuda_allocated": allocated, "graphs": len(self._graphs)}

    def _seed(self, request: Request) -> dict:
        torch.manual_seed(request.get("seed", int))
        return {}

    def _leave(self, request: Request) -> dict:
        self.finished = True
        return {}

    def _read(self, name: str, wire: object) -> torch.Tensor:
        """A tensor of the client's, on the device in whose memory it lies."""
        on_gpu = isinstance(wire, dict) and wire.get("in") is not None
        return (self._device_arena if on_gpu else self._arena).read(name, wire)

    def _write(self, tensors: dict[str, torch.Tensor | None], room: Room) -> dict[str, dict | None]:
        """Into the memory of the GPU what fits there, and the rest into the arena."""
        there = self._device_arena.write(tensors, room.device) if room.device is not None else {}
        here = {name: tensor for name, tensor in tensors.items() if name not in there}
        wires = {**self._arena.write(here, room.host), **there}
        return {name: wires[name] for name in tensors}

    def _graph(self, number: int) -> Call:
        if number not in self._graphs:
            raise Failure("request", f"call = {number}: no such graph is kept")
        return self._graphs[number]

    def _case(self, request: Request) -> Case:
        """What a request asks to compute, its tensors copied out of the arena."""
        op, device = request.get("op", str), request.get("device", str)
        if op not in FUNCTIONS:
            raise Failure("request", f"op = {op}: allowed are {', '.join(FUNCTIONS)}")
        if device not in ("cpu", "cuda"):
            raise Failure("request", f"device = {device}: allowed are cpu and cuda")
        self._arena.resize(request.get("arena", int))
        positional, keywords = PARAMETERS[op]
        wires = {name: wire for name, wire in request.get("inputs", dict).items() if wire is not None}
        allowed = {*positional, *({"blocks"} & set(keywords))}
        if not set(positional) <= set(wires) <= allowed:
            raise Failure("request", f"inputs of {op} are {', '.join(sorted(wires))}: allowed are {sorted(allowed)}")
        inputs = {name: self._read(name, wires[name]) for name in sorted(wires, key=_order(positional))}
        for name, tensor in inputs.items():
            if tensor.dim() != 4:
                raise Failure("request", f"{name} has the shape {list(tensor.shape)}: allowed are four extents")
        gradients = request.optional("gradients", list) or []
        for name in gradients:
            if name not in inputs or not inputs[name].is_floating_point():
                raise Failure("request", f"gradients = {gradients}: allowed are floating inputs of {op}")
        return Case(op, inputs, _geometry(request, op), _cu_seqlens(request, inputs), device, gradients)


def _room(request: Request) -> Room:
    return Room(request.get("room", int), request.optional("device_room", int))


def _order(positional: tuple[str, ...]) -> Any:
    return lambda name: positional.index(name) if name in positional else len(positional)


def _geometry(request: Request, op: str) -> Geometry | None:
    if "geometry" not in PARAMETERS[op][1]:
        return None
    fields = request.get("geometry", dict)
    if set(fields) != set(GEOMETRY) or not all(type(size) is int and size >= 1 for size in fields.values()):
        raise Failure("request", f"geometry = {fields}: allowed are {', '.join(GEOMETRY)}, integers from 1 up")
    return Geometry(**fields)


def _cu_seqlens(request: Request, inputs: dict[str, torch.Tensor]) -> list[int] | None:
    bounds = request.optional("cu_seqlens", list)
    if bounds is None:
        return None
    first = next(iter(inputs.values()))
    rising = all(type(bound) is int for bound in bounds) and bounds == sorted(bounds)
    if len(bounds) < 2 or not rising or bounds[0] != 0 or bounds[-1] != first.shape[1] or first.shape[0] != 1:
        raise Failure("request", f"cu_seqlens = {bounds}: allowed are bounds from 0 up to {first.shape[1]}, B = 1")
    return bounds


def _require_fitting(name: str, cotangent: torch.Tensor, output: torch.Tensor | None) -> None:
    if output is None or cotangent.shape != output.shape or cotangent.dtype != output.dtype:
        raise Failure("request", f"cotangents: {name}: allowed is one of the shape and dtype of an output")


def _give_back() -> None:
    """What is free goes to the system, so that a leak shows, which would fill the allocator's holes first."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)


def _resident() -> int:
    """Bytes that the process holds in memory."""
    try:
        with open("/proc/self/statm", "rb") as status:
            return int(status.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # no Linux: the largest so far is the best that the standard library knows
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
