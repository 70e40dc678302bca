"""The client's half of the protocol, as small as the tests allow: pipes, a memfd, and one host process."""

from __future__ import annotations

import json
import mmap
import os
import select
import subprocess
import sys
import threading
from pathlib import Path

import torch

ADAPTERS = Path(__file__).resolve().parent.parent
HOST = ADAPTERS / "host" / "host.py"
LIES = ADAPTERS / "tests" / "lying"
DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int32": torch.int32,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
GEOMETRY = {"l": 4, "d": 2, "l_sel": 4, "n_sel": 3, "w": 5}
KEPT = 1 << 16


class Client:
    """A started host. `with` ends it whatever happens."""

    def __init__(self, adapter: Path, group: bool = False, **environment: str):
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        self._memory = os.memfd_create("arena")
        self.arena = self._used = 0
        self._id = 0
        theirs = (requests, answers, self._memory)
        self.process = subprocess.Popen(
            [sys.executable, "-u", str(HOST), str(adapter)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=theirs,
            start_new_session=group,  # as the real client does
            env={**os.environ, **environment, "NSA_ADAPTER_FDS": ",".join(map(str, theirs))},
        )
        os.close(requests)
        os.close(answers)
        self._pending = b""
        self.printed = 0  # bytes that came on stdout and stderr
        self.last_words = b""
        self._drain = threading.Thread(target=self._read_stdout, daemon=True)
        self._drain.start()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_) -> None:
        self.close_pipe()
        self.process.kill()
        self.process.wait()
        self._drain.join()
        self.process.stdout.close()
        os.close(self._answers)
        os.close(self._memory)

    def close_pipe(self) -> None:
        if self._requests is not None:
            os.close(self._requests)
            self._requests = None

    def ask(self, do: str, **fields) -> dict:
        """One request and its answer."""
        self._id += 1
        answer = self.raw(json.dumps({"id": self._id, "do": do, **fields}))
        assert answer["id"] == self._id, answer
        return answer

    def raw(self, line: str) -> dict:
        self.send(line)
        return json.loads(self.receive())

    def send(self, line: str) -> None:
        data = line.encode() + b"\n"
        while data:
            data = data[os.write(self._requests, data) :]

    def receive(self, seconds: float = 60.0) -> bytes:
        """The next line. EOFError where the host has died, TimeoutError where it is silent."""
        while b"\n" not in self._pending:
            if not select.select([self._answers], [], [], seconds)[0]:
                raise TimeoutError("the host is silent")
            data = os.read(self._answers, 1 << 16)
            if not data:
                raise EOFError(f"the host has died: {self.last_words!r}")
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def ok(self, do: str, **fields) -> dict:
        answer = self.ask(do, **fields)
        assert "ok" in answer, answer
        return answer["ok"]

    def error(self, do: str, **fields) -> dict:
        answer = self.ask(do, **fields)
        assert "error" in answer, answer
        return answer["error"]

    def put(self, **tensors: torch.Tensor) -> dict[str, dict]:
        """Lays tensors out from the start of the arena, which grows where it must."""
        wires, end = {}, 0
        for name, tensor in tensors.items():
            at = (end + 63) // 64 * 64
            end = at + tensor.numel() * tensor.element_size()
            wires[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "at": at}
        if end > self.arena:
            os.ftruncate(self._memory, end)
            self.arena = end
        self._used = end
        for name, tensor in tensors.items():
            if tensor.numel():
                self._view(wires[name]).copy_(tensor)
        return wires

    def take(self, wire: dict | None) -> torch.Tensor | None:
        assert wire is None or wire["at"] % 64 == 0, wire
        return None if wire is None else self._view(wire).clone()

    def call(self, op: str, inputs: dict[str, torch.Tensor], **fields) -> dict:
        """The fields of a forward request."""
        common = {"device": "cpu", "geometry": GEOMETRY, "cu_seqlens": None, "gradients": [], **fields}
        return {"op": op, "inputs": self.put(**inputs), **common, "arena": self.arena, "room": self._used}

    def forward(self, op: str, inputs: dict[str, torch.Tensor], **fields) -> tuple[dict, dict]:
        """The answer, and the outputs as tensors."""
        answer = self.ok("forward", **self.call(op, inputs, **fields))
        self.arena = answer["arena"]
        return answer, {name: self.take(wire) for name, wire in answer["outputs"].items()}

    def backward(self, call: int, keep: bool = False, **cotangents: torch.Tensor) -> tuple[dict, dict]:
        wires = self.put(**cotangents)
        place = {"arena": self.arena, "room": self._used}
        answer = self.ok("backward", call=call, cotangents=wires, keep=keep, **place)
        self.arena = answer["arena"]
        return answer, {name: self.take(wire) for name, wire in answer["gradients"].items()}

    def saved(self, op: str, inputs: dict, folder: Path | str, **fields) -> dict:
        """The fields of a request to save a call; cotangents and expected are tensors by name."""
        parts = {"inputs": inputs, "cotangents": fields.pop("cotangents", {}), "expected": fields.pop("expected", {})}
        wires = self.put(**{f"{part}.{name}": tensor for part in parts for name, tensor in parts[part].items()})
        laid = {part: {name: wires[f"{part}.{name}"] for name in tensors} for part, tensors in parts.items()}
        common = {"device": "cpu", "geometry": GEOMETRY, "cu_seqlens": None, "gradients": [], "wrote": False}
        place = {"folder": str(folder), "title": f"{op} as somebody called it", "arena": self.arena}
        return {"op": op, **common, **place, **fields, **laid}

    def _view(self, wire: dict) -> torch.Tensor:
        dtype, count = DTYPES[wire["dtype"]], 1
        for extent in wire["shape"]:
            count *= extent
        if count == 0:
            return torch.empty(wire["shape"], dtype=dtype)
        held = mmap.mmap(self._memory, self.arena)
        return torch.frombuffer(held, dtype=dtype, count=count, offset=wire["at"]).reshape(wire["shape"])

    def _read_stdout(self) -> None:
        """As the real client does: always, and it keeps the end."""
        while True:
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            if not data:
                return
            self.printed += len(data)
            self.last_words = (self.last_words + data)[-KEPT:]


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))
