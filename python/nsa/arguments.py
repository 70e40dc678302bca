"""What an argument may be that is no tensor. Limits and words are those of a configuration file (nsa/config.hpp).

None of it is asked before `nsa.attention` calls its operator, which asks for itself: it would cost the host its time.
Where that has refused a call, this says of what.
"""

from __future__ import annotations

import re
from numbers import Integral, Real
from typing import Optional

import torch

BACKENDS = ("auto", "cuda", "sdpa")
SIZES = ("l", "d", "l_sel", "n_sel", "w")  # of a Geometry
MOST_TOKENS, MOST_BLOCKS = 2**20, 65536  # nsa/config_schema.hpp
ROPE_SCALE = (1e-6, 1e6)  # of NSA_ROPE_SCALE (nsa/flags.cpp)
_REALS = ("rope_base", "gate_tau")
# The arguments of the operator, with values that fit whatever the others are.
_MODEL = {
    "dim": 1, "n_layers": 1, "n_heads": 1, "n_kv_groups": 1, "d_k": 8, "d_v": 8, "vocab": 256,
    "rope_base": 10000.0, "gate_tau": 1.0,
}  # fmt: skip
_GEOMETRY = (32, 16, 64, 16, 512)


def check_options(geometry, backend) -> None:
    """Of an operator's call."""
    one_of("backend", backend, BACKENDS)
    check_model(geometry)


def check_model(geometry=_GEOMETRY, **values) -> None:
    """Of a model's configuration: `values` by the names of ModelConfig."""
    try:
        sizes = tuple(geometry)
    except TypeError:
        sizes = ()
    if isinstance(geometry, dict) or len(sizes) != len(SIZES):
        raise TypeError(f"geometry: is {geometry!r}; allowed: nsa.Geometry({', '.join(SIZES)})")
    for name, value in {**values, **{f"geometry.{name}": size for name, size in zip(SIZES, sizes)}}.items():
        check_real(name, value) if name in _REALS else _whole(name, value)
    told = torch.ops.nsa.model_errors(*{**_MODEL, **values}.values(), *sizes)
    if told:
        key, value, allowed = told[:3]
        allowed = re.sub(r"^must divide", "a divisor of", allowed).removeprefix("must be ")
        raise ValueError(_named(f"{key}: is {value}; allowed: {allowed}"))


def check_real(name: str, value, least: Optional[float] = None, most: Optional[float] = None) -> None:
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"{name}: is {value!r}; allowed: a number")
    if least is not None and not (least <= value <= most):
        raise ValueError(f"{name}: is {value!r}; allowed: a number from {least:g} to {most:g}")


def one_of(name: str, value, allowed: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name}: is {value!r}; allowed: {', '.join(map(repr, allowed))}")
    return value


def _whole(name: str, value) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{name}: is {value!r}; allowed: a whole number")
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"{name}: is {value}; allowed: a whole number of 64 bits")


def _named(words: str) -> str:
    """Keys of a configuration file as the arguments that they are here."""
    geometry = "|".join(SIZES)
    return re.sub(r"\b(model|nsa)\.(?=gate_tau|dim|n_|d_|vocab|rope_base)", "", re.sub(rf"\bnsa\.(?=({geometry})\b)", "geometry.", words))
