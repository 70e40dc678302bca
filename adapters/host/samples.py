"""Small inputs for every function that an adapter claims, within its limits."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from .arena import DTYPES
from .calls import Case, Geometry, blocks_of
from .description import FUNCTIONS, PARAMETERS
from .sizes import smallest

BATCH, GROUPS = 2, 2
BY_PREFERENCE = ("fp32", "bf16", "fp16", "fp64")


def cases(description: dict, device: str) -> Iterator[Case]:
    """One for every claimed function and layout, with gradients where they are claimed."""
    sizes = smallest(description.get("limits", {}))
    geometry = Geometry(*(sizes[name] for name in ("l", "d", "l_sel", "n_sel", "w")))
    dtype = next(DTYPES[name] for name in BY_PREFERENCE if name in description["dtypes"])
    generator = torch.Generator("cpu").manual_seed(1)
    for layout in description["layouts"]:
        tokens = sizes["tokens"]
        bounds = [0, tokens // 2, tokens] if layout == "packed" else None
        for op in FUNCTIONS:
            if op in description["computes"]:
                inputs = _inputs(op, sizes, geometry, bounds, dtype, generator)
                differentiated = description["gradients"] and op != "select"
                wanted = [name for name in inputs if name != "blocks"] if differentiated else []
                yield Case(op, inputs, geometry, bounds, device, wanted)


def _inputs(
    op: str,
    sizes: dict[str, int],
    geometry: Geometry,
    bounds: list[int] | None,
    dtype: torch.dtype,
    generator: torch.Generator,
) -> dict[str, torch.Tensor]:
    shapes = _shapes(op, sizes, geometry, bounds)
    inputs = {}
    for name in PARAMETERS[op][0]:
        if name == "blocks":
            inputs[name] = _blocks(geometry, bounds or [0, sizes["tokens"]], shapes[name])
        else:
            inputs[name] = torch.randn(shapes[name], generator=generator, device="cpu").to(dtype)
    if "gates" in inputs:
        inputs["gates"] = torch.softmax(inputs["gates"].float(), -1).to(dtype)
    return inputs


def _shapes(op: str, sizes: dict[str, int], geometry: Geometry, bounds: list[int] | None) -> dict[str, list[int]]:
    """The shape of every input of a function."""
    batch, tokens, heads = 1 if bounds else BATCH, sizes["tokens"], GROUPS * sizes["heads_per_group"]
    lengths = [end - begin for begin, end in zip(bounds, bounds[1:])] if bounds else [tokens]
    blocks, d_k, d_v = blocks_of(geometry, lengths), sizes["d_k"], sizes["d_v"]

    def shape(name: str) -> list[int]:
        if name == "q":
            return [batch, tokens, heads, d_k]
        if name == "gates":
            return [batch, tokens, GROUPS, 3]
        if name == "blocks":
            return [batch, tokens, GROUPS, geometry.n_sel]
        if name.startswith("o_"):
            return [batch, tokens, heads, d_v]
        rows = blocks if name.endswith("_cmp") else tokens
        return [batch, rows, GROUPS, d_k if name.startswith("k") else d_v]

    return {name: shape(name) for name in PARAMETERS[op][0]}


def _blocks(geometry: Geometry, bounds: list[int], shape: list[int]) -> torch.Tensor:
    """The first block, the token's own and the one before, as every selection has them."""
    rows = []
    for begin, end in zip(bounds, bounds[1:]):
        for own in (token // geometry.l_sel for token in range(end - begin)):
            chosen = sorted({0, max(own - 1, 0), own})
            rows.append(chosen + [-1] * (geometry.n_sel - len(chosen)))
    table = torch.tensor(rows, dtype=torch.int32, device="cpu")
    return table[None, :, None, :].expand(shape).contiguous()
