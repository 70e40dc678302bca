"""Files of named tensors in the safetensors format, such as the checkpoints of nsa-train. Nothing but torch is needed."""

from __future__ import annotations

import json
import math
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
_Entry = tuple[str, torch.dtype, list[int], int, int]  # name, dtype, shape, begin, end: bytes after the header
_CHECKSUM, _FORMAT = "checksum", "nsa-train/1"  # nsa/train/checkpoint.hpp
PARAMETERS = "model/"  # where a checkpoint of nsa-train has the weights


def load_tensors(file: Union[str, os.PathLike], prefix: str = "") -> dict[str, torch.Tensor]:
    """The tensors by name, on the CPU; only those whose names begin with `prefix`, named without it. ValueError where the
    bytes are not what the header promises, and for a checkpoint whose checksum does not fit: as nsa::load_tensors."""
    content = _content(file)
    header, start = _header(file, content)
    entries = _entries(file, header)
    _check_lengths(file, entries, len(content) - start)
    if _has_checksum(file, header, entries):
        _check_sum(file, content, start + entries.pop()[3])
    tensors = {}
    for name, dtype, shape, begin, end in entries:
        if name.startswith(prefix):
            bytes_ = content[start + begin : start + end]
            values = torch.frombuffer(bytes_, dtype=dtype) if bytes_ else torch.empty(0, dtype=dtype)
            tensors[name.removeprefix(prefix)] = values.reshape(shape)
    if not tensors:
        raise ValueError(f"{file}: has no tensor whose name begins with '{prefix}'")
    return tensors


def load_facts(file: Union[str, os.PathLike]) -> dict:
    """What a checkpoint of nsa-train says of itself: step, loss, config ({"model.dim": "768", ...}) and more."""
    facts = _header(file, _content(file))[0].get("__metadata__", {}).get("facts")
    if facts is None:
        raise ValueError(f"{file}: has no facts: it is no checkpoint of nsa-train")
    return json.loads(facts)


def save_tensors(tensors: Mapping[str, torch.Tensor], file: Union[str, os.PathLike], prefix: str = PARAMETERS) -> None:
    """A file that nsa::load_tensors reads in C++; the weights of a model at the names of a checkpoint. It is no whole
    checkpoint: nsa-train does not go on from it."""
    header, blobs, offset = {}, [], 0
    for name, tensor in sorted(tensors.items()):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name}: is {type(tensor).__name__}; allowed: a tensor")
        if tensor.dtype not in _NAMES or tensor.is_meta:
            allowed = f"{', '.join(map(str, _NAMES))}, with memory"
            raise ValueError(f"{name}: is {tensor.dtype} on {tensor.device}; allowed: {allowed}")
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        begin = flat.storage_offset()  # of a slice, or of a parameter that lies among others
        blobs.append(bytes(flat.untyped_storage()[begin : begin + flat.numel()]))
        begin, offset = offset, offset + len(blobs[-1])
        header[prefix + name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, offset],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    Path(file).write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def _content(file) -> bytearray:
    with open(file, "rb") as stream:
        content = bytearray(os.fstat(stream.fileno()).st_size)
        length = stream.readinto(content)
        return content[:length] + stream.read()


def _header(file, content: bytearray) -> tuple[dict, int]:
    """The header, and where the tensors begin."""
    length = struct.unpack_from("<Q", content)[0] if len(content) >= 8 else 0
    if len(content) < 8 or length > len(content) - 8:
        raise ValueError(f"{file}: is no file of tensors: its header is cut off")
    try:
        header = json.loads(content[8 : 8 + length].decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file}: is damaged or no file of tensors: its header makes no sense: {error}") from None
    if not isinstance(header, dict) or not isinstance(header.get("__metadata__", {}), dict):
        raise ValueError(f"{file}: is damaged or no file of tensors: its header holds no names with values")
    return header, 8 + length


def _entries(file, header: dict) -> list[_Entry]:
    """In the order in which they lie in the file."""
    entries = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            dtype, (begin, end) = _DTYPES[entry["dtype"]], entry["data_offsets"]
            shape = [_size(x) for x in entry["shape"]]
            entries.append((name, dtype, shape, _size(begin), _size(end)))
        except (KeyError, TypeError, ValueError):
            raise ValueError(
                f"{file}: its header makes no sense: {name} is {entry}; allowed: dtype (one of {', '.join(sorted(_DTYPES))}), "
                "shape and data_offsets"
            ) from None
    return sorted(entries, key=lambda entry: entry[3:])


def _size(value) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError
    return value


def _check_lengths(file, entries: list[_Entry], length: int) -> None:
    """Every byte belongs to one tensor, and every tensor has its bytes."""
    place = 0
    for name, dtype, shape, begin, end in entries:
        if begin != place or end - begin != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"{file}: does not hold {name} where its header says")
        if end > length:
            raise ValueError(f"{file}: is cut off within {name}: {end - length} bytes of it are missing")
        place = end
    if place != length:
        raise ValueError(f"{file}: goes on after its end, for {length - place} bytes")


def _has_checksum(file, header: dict, entries: list[_Entry]) -> bool:
    """Other writers have none; nsa-train's last tensor is one."""
    found = bool(entries) and entries[-1][:3] == (_CHECKSUM, torch.uint8, [8])
    if not found and header.get("__metadata__", {}).get("format") == _FORMAT:
        raise ValueError(f"{file}: has no checksum; allowed: as its last tensor, in a checkpoint of nsa-train")
    return found


def _check_sum(file, content: bytearray, end: int) -> None:
    wanted = struct.unpack_from("<q", content, end)[0]
    if torch.ops.nsa.hash64(torch.frombuffer(content, dtype=torch.uint8, count=end)) != wanted:
        raise ValueError(f"{file}: is damaged: its checksum does not fit its content")
