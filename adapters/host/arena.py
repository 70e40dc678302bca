"""Tensors in memory that the client shares with us. They travel as their bytes: no value is touched on the way."""

from __future__ import annotations

import mmap
import os

import torch

from .errors import Failure

ALIGNMENT = 64
GROWTH = 1 << 20  # the arena grows in steps of this, so that both sides map anew less often

DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int32": torch.int32,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Arena:
    """The client's memfd, mapped. Whoever needs more room makes it larger and tells the other its size."""

    def __init__(self, descriptor: int):
        self._descriptor = descriptor
        self._bytes: mmap.mmap | None = None
        self.size = 0

    def resize(self, size: int) -> None:
        """Follows the client, which says in every request how large the arena is now."""
        if size == self.size:
            return
        held = os.fstat(self._descriptor).st_size
        if not 0 <= size <= held:
            raise Failure("request", f"arena = {size}: it holds {held} bytes")
        self._bytes = mmap.mmap(self._descriptor, size) if size else None
        self.size = size

    def read(self, name: str, wire: object) -> torch.Tensor:
        """A copy on the CPU of what the client calls {"dtype", "shape", "at"}."""
        dtype, shape, count, at = located(name, wire, None, self.size, ALIGNMENT)
        return self._view(dtype, count, at).reshape(shape).clone()

    def write(self, tensors: dict[str, torch.Tensor | None], room: int) -> dict[str, dict | None]:
        """Lays tensors out from the offset `room` on and says where they are. Nothing stays nothing."""
        wires, end = {}, room
        for name, tensor in tensors.items():
            if tensor is None:
                wires[name] = None
                continue
            wires[name], end = laid(tensor, end, ALIGNMENT)
        self._make_room(end)
        for name, wire in wires.items():
            if wire is not None:
                tensor = tensors[name].detach()
                self._view(tensor.dtype, tensor.numel(), wire["at"]).copy_(tensor.reshape(-1))
        return wires

    def _make_room(self, size: int) -> None:
        if size > self.size:
            size = -(-size // GROWTH) * GROWTH
            os.ftruncate(self._descriptor, size)
            self.resize(size)

    def _view(self, dtype: torch.dtype, count: int, at: int) -> torch.Tensor:
        if count == 0:  # torch.frombuffer refuses an empty one
            return torch.empty(0, dtype=dtype, device="cpu")
        return torch.frombuffer(self._bytes, dtype=dtype, count=count, offset=at)


def located(
    name: str, wire: object, within: str | None, size: int, alignment: int
) -> tuple[torch.dtype, list[int], int, int]:
    """dtype, shape, count of values and first byte of a tensor that lies wholly inside an arena of `size` bytes, the one
    that is called `within`."""
    dtype, shape, at = _parse(name, wire)
    if wire.get("in") != within:
        raise Failure("request", f"{name}: in = {wire.get('in')}: allowed is {within}")
    count = _count(shape)
    end = at + count * dtype.itemsize
    if at % alignment or at < 0 or end > size:
        raise Failure("request", f"{name}: bytes {at} to {end}: allowed are multiples of {alignment} up to {size}")
    return dtype, shape, count, at


def laid(tensor: torch.Tensor, room: int, alignment: int) -> tuple[dict, int]:
    """Where a tensor goes that is to lie from `room` on, and where it ends there."""
    at = -(-room // alignment) * alignment
    wire = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "at": at}
    return wire, at + tensor.numel() * tensor.dtype.itemsize


def _parse(name: str, wire: object) -> tuple[torch.dtype, list[int], int]:
    if not isinstance(wire, dict):
        raise Failure("request", f"{name}: allowed is an object with dtype, shape and at")
    dtype, shape, at = wire.get("dtype"), wire.get("shape"), wire.get("at")
    if dtype not in DTYPES:
        raise Failure("request", f"{name}: dtype = {dtype}: allowed are {', '.join(DTYPES)}")
    if not isinstance(shape, list) or not all(type(extent) is int and extent >= 0 for extent in shape):
        raise Failure("request", f"{name}: shape = {shape}: allowed is a list of integers from 0 up")
    if type(at) is not int:
        raise Failure("request", f"{name}: at = {at}: allowed is an integer")
    return DTYPES[dtype], shape, at


def _count(shape: list[int]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count
