"""Files of named tensors in the safetensors format, such as the checkpoints of nsa-train. Nothing but torch is needed."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Mapping, Union

import torch

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
PARAMETERS = "model/"  # where a checkpoint of nsa-train has the weights


def load_tensors(file: Union[str, os.PathLike], prefix: str = "") -> dict[str, torch.Tensor]:
    """The tensors by name, on the CPU; only those whose names begin with `prefix`, named without it. The checksum of a
    checkpoint is not looked at: nsa-train does that."""
    header, data = _parts(file)
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__" or not name.startswith(prefix):
            continue
        begin, end = entry["data_offsets"]
        dtype = _DTYPES.get(entry["dtype"])
        if dtype is None or end > len(data):
            raise ValueError(f"{file}: {name} is {entry}; the file holds {len(data)} bytes of {sorted(_DTYPES)}")
        values = torch.frombuffer(bytearray(data[begin:end]), dtype=dtype) if end > begin else torch.empty(0, dtype=dtype)
        tensors[name.removeprefix(prefix)] = values.reshape(entry["shape"])
    if not tensors:
        raise ValueError(f"{file}: has no tensor whose name begins with '{prefix}'")
    return tensors


def load_facts(file: Union[str, os.PathLike]) -> dict:
    """What a checkpoint of nsa-train says of itself: step, loss, config ({"model.dim": "768", ...}) and more."""
    facts = _parts(file)[0].get("__metadata__", {}).get("facts")
    if facts is None:
        raise ValueError(f"{file}: has no facts: it is no checkpoint of nsa-train")
    return json.loads(facts)


def save_tensors(tensors: Mapping[str, torch.Tensor], file: Union[str, os.PathLike], prefix: str = PARAMETERS) -> None:
    """A file that nsa::load_tensors reads in C++; the weights of a model at the names of a checkpoint. It is no whole
    checkpoint: nsa-train does not go on from it."""
    header, blobs, offset = {}, [], 0
    for name, tensor in sorted(tensors.items()):
        if tensor.dtype not in _NAMES:
            raise ValueError(f"{name}: is {tensor.dtype}; allowed: {', '.join(map(str, _NAMES))}")
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        blobs.append(bytes(flat.view(torch.uint8).untyped_storage()[: flat.numel() * flat.element_size()]))
        begin, offset = offset, offset + len(blobs[-1])
        header[prefix + name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, offset],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    Path(file).write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def _parts(file) -> tuple[dict, memoryview]:
    content = memoryview(Path(file).read_bytes())
    if len(content) >= 8:
        (length,) = struct.unpack("<Q", content[:8])
        if length <= len(content) - 8:
            return json.loads(bytes(content[8 : 8 + length])), content[8 + length :]
    raise ValueError(f"{file}: is no file of tensors: its header is cut off")
