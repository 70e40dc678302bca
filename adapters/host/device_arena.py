"""Tensors in memory of a GPU that the client shares with us (CUDA IPC): they never leave the GPU."""

from __future__ import annotations

import ctypes

import torch

from .arena import laid, located
from .errors import Failure

ALIGNMENT = 256
NAME = "cuda"  # in a place


class Unshared(Exception):
    """Why the memory cannot be had, in words."""


class DeviceArena:
    """The client's memory. It names another when it needs more room, and frees the old one once we have closed it."""

    def __init__(self, driver: type[Driver] | None = None):
        self._start = driver or Driver
        self._driver: Driver | None = None
        self._bytes: torch.Tensor | None = None

    @property
    def size(self) -> int:
        return 0 if self._bytes is None else self._bytes.numel()

    def open(self, memory: dict) -> str:
        """In the place of what was open before. Why it cannot be opened, or "": nothing is open then."""
        handle, size, gpu = _handle(memory)
        try:
            self._close()
            if self._driver is None:
                self._driver = self._start()
            if self._driver.gpu() != gpu:
                raise Unshared(f"it is memory of the GPU {gpu}: here calls go to {self._driver.gpu()}")
            self._bytes = self._driver.open(handle, size)
        except (Unshared, RuntimeError) as why:  # torch's own among them, of a GPU that cannot be used
            return str(why).partition("\n")[0] or type(why).__name__
        return ""

    def read(self, name: str, wire: object) -> torch.Tensor:
        """A copy on the GPU, finished: the client may write there again after any answer."""
        if self._bytes is None:
            raise Failure("request", f"{name}: in = cuda: no memory of a GPU is shared")
        dtype, shape, count, at = located(name, wire, NAME, self.size, ALIGNMENT)
        tensor = self._view(dtype, count, at).reshape(shape).clone()
        self._driver.wait()
        return tensor

    def write(self, tensors: dict[str, torch.Tensor | None], room: int) -> dict[str, dict]:
        """Lays out those that fit, from the offset `room` on, and says where they are."""
        if room < 0:
            raise Failure("request", f"device_room = {room}: allowed are integers from 0 up")
        wires, end = {}, room
        for name, tensor in tensors.items():
            if self._bytes is None or tensor is None:
                continue
            wire, its_end = laid(tensor, end, ALIGNMENT)
            if its_end <= self.size:
                self._view(tensor.dtype, tensor.numel(), wire["at"]).reshape(tensor.shape).copy_(tensor.detach())
                wires[name], end = {**wire, "in": NAME}, its_end
        if wires:
            self._driver.wait()  # the client knows nothing of our streams
        return wires

    def _close(self) -> None:
        """Also what could not be closed is never used again."""
        opened, self._bytes = self._bytes, None
        if opened is not None:
            pointer = opened.data_ptr()
            del opened  # it ends before its memory does
            self._driver.close(pointer)

    def _view(self, dtype: torch.dtype, count: int, at: int) -> torch.Tensor:
        return self._bytes[at : at + count * dtype.itemsize].view(dtype)


class Driver:
    """CUDA's driver, without torch: torch opens only what another torch has shared."""

    LIBRARY = "libcuda.so.1"

    def __init__(self):
        if not torch.cuda.is_available():
            raise Unshared("this torch sees no GPU here")
        torch.zeros(1, device="cuda")  # from now on there is a context to open it in
        try:
            self._library = ctypes.CDLL(self.LIBRARY)
        except OSError as error:
            raise Unshared(str(error)) from None
        self._library.cuIpcOpenMemHandle_v2.argtypes = [ctypes.POINTER(ctypes.c_uint64), _Handle, ctypes.c_uint]
        self._library.cuIpcCloseMemHandle.argtypes = [ctypes.c_uint64]

    def gpu(self) -> str:
        """The uuid in hex of the GPU that tensors are made on: its number may be another in another process."""
        device, uuid = ctypes.c_int(), (ctypes.c_ubyte * 16)()
        self._check("cuCtxGetDevice", ctypes.byref(device))
        newest = "cuDeviceGetUuid_v2" if hasattr(self._library, "cuDeviceGetUuid_v2") else "cuDeviceGetUuid"
        self._check(newest, ctypes.byref(uuid), device)
        return bytes(uuid).hex()

    def open(self, handle: bytes, size: int) -> torch.Tensor:
        """The memory as bytes."""
        lazily_enable_peer_access = 1  # the only flag that there is, and required
        pointer = ctypes.c_uint64()
        wire = _Handle.from_buffer_copy(handle)
        self._check("cuIpcOpenMemHandle_v2", ctypes.byref(pointer), wire, lazily_enable_peer_access)
        return torch.as_tensor(_Memory(pointer.value, size), device="cuda")

    def close(self, pointer: int) -> None:
        self.wait()
        self._check("cuIpcCloseMemHandle", pointer)

    def wait(self) -> None:
        torch.cuda.synchronize()

    def _check(self, function: str, *arguments: object) -> None:
        error = getattr(self._library, function)(*arguments)
        if error != 0:
            name = ctypes.c_char_p()
            self._library.cuGetErrorName(error, ctypes.byref(name))
            raise Unshared(f"{function}: {(name.value or b'an error without a name').decode()}")


class _Handle(ctypes.Structure):
    """CUipcMemHandle, which is passed by value."""

    _fields_ = [("reserved", ctypes.c_ubyte * 64)]


class _Memory:
    """Memory of a GPU as torch takes it."""

    def __init__(self, pointer: int, size: int):
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (pointer, False),
            "version": 2,
        }


def _handle(memory: dict) -> tuple[bytes, int, str]:
    handle, size, gpu = memory.get("handle"), memory.get("size"), memory.get("gpu")
    try:
        raw = bytes.fromhex(handle)
    except (TypeError, ValueError):
        raw = b""
    if len(raw) != ctypes.sizeof(_Handle):
        raise Failure("request", f"memory: handle = {handle}: allowed are 64 bytes in hex")
    if type(size) is not int or size < 1:
        raise Failure("request", f"memory: size = {size}: allowed is an integer from 1 up")
    return raw, size, gpu
