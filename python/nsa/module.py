"""One layer of Native Sparse Attention, with the parameters of the C++ model at their names (nsa/README.md)."""

from __future__ import annotations

import contextlib
import math
from typing import Optional

import torch
from torch import Tensor, nn

from nsa.arguments import BACKENDS, ROPE_SCALE, check_model, check_real, one_of
from nsa.functional import PAPER, Geometry, PhiWeights, _describe, _packing, attention


class Gate(nn.Module):
    """gates [B,S,G,3] from the mean of a group's queries before RoPE, in fp32 (fp64 for fp64)."""

    def __init__(self, d_k: int, groups: int, activation: str = "softmax", tau: float = 1.0):
        super().__init__()
        hidden = max(1, d_k // 2)
        self.groups, self.activation, self.tau = groups, one_of("gate", activation, ("softmax", "sigmoid")), tau
        self.fc1 = nn.Linear(d_k, hidden)
        self.fc2 = nn.Linear(hidden, 3)
        self._reset_fc2()

    def reset_parameters(self) -> None:
        self.fc1.reset_parameters()
        self.fc2.reset_parameters()
        self._reset_fc2()

    def _reset_fc2(self) -> None:  # all-zero would leave every gate at 1/3 and fc1 without a gradient
        nn.init.xavier_uniform_(self.fc2.weight, gain=0.1)
        nn.init.zeros_(self.fc2.bias)

    def forward(self, q: Tensor) -> Tensor:
        # Meta tensors have no autocast to switch off.
        with contextlib.nullcontext() if q.is_meta else torch.autocast(q.device.type, enabled=False):
            mean = _wide(q).unflatten(2, (self.groups, -1)).mean(3)
            hidden = nn.functional.silu(_linear(self.fc1, mean))
            logits = _linear(self.fc2, hidden) / self.tau
            return torch.softmax(logits, -1) if self.activation == "softmax" else torch.sigmoid(logits)


class Compressor(nn.Module):
    """The weights of learned compression (phi = mlp) of keys, or of values."""

    def __init__(self, l: int, width: int):  # noqa: E741
        super().__init__()
        self.position = nn.Parameter(torch.empty(l, width))
        nn.init.normal_(self.position, 0.0, 0.02)
        self.fc1 = nn.Linear(l * width, width, bias=False)
        self.fc2 = nn.Linear(width, width, bias=False)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.position, 0.0, 0.02)
        self.fc1.reset_parameters()
        self.fc2.reset_parameters()

    def weights(self, dtype: torch.dtype) -> PhiWeights:
        return PhiWeights(self.position.to(dtype), self.fc1.weight.to(dtype), self.fc2.weight.to(dtype))


class NativeSparseAttention(nn.Module):
    """x [B,S,dim] -> [B,S,dim].

    n_kv_groups divides n_heads; d_k and d_v are multiples of 8 up to 256. phi: "avg" or "mlp", gate: "softmax" or
    "sigmoid". What a configuration file would be refused for is refused here. `backend` as in nsa.functional. In
    forward, cu_seqlens [documents + 1] marks a packed batch (B = 1); positions count from each document's start.
    """

    def __init__(
        self,
        dim: int,
        n_heads: int,
        n_kv_groups: int = 1,
        d_k: int = 64,
        d_v: int = 64,
        *,
        geometry: Geometry = PAPER,
        phi: str = "avg",
        gate: str = "softmax",
        gate_tau: float = 1.0,
        rope_base: float = 10000.0,
        rope_scale: float = 1.0,
        backend: str = "auto",
    ):
        super().__init__()
        check_model(
            geometry, dim=dim, n_heads=n_heads, n_kv_groups=n_kv_groups, d_k=d_k, d_v=d_v, rope_base=rope_base, gate_tau=gate_tau
        )
        check_real("rope_scale", rope_scale, *ROPE_SCALE)
        one_of("backend", backend, BACKENDS)
        self.n_heads, self.n_kv_groups, self.geometry = n_heads, n_kv_groups, Geometry(*geometry)
        self.rope_base, self.rope_scale, self.backend = rope_base, rope_scale, backend
        keys, values = n_kv_groups * d_k, n_kv_groups * d_v
        self.q = nn.Linear(dim, n_heads * d_k, bias=False)
        for branch in ("cmp", "sel", "win"):  # every branch has keys and values of its own (paper 3.3.3)
            setattr(self, f"k_{branch}", nn.Linear(dim, keys, bias=False))
            setattr(self, f"v_{branch}", nn.Linear(dim, values, bias=False))
        self.phi_k = self.phi_v = None
        if one_of("phi", phi, ("avg", "mlp")) == "mlp":
            self.phi_k = Compressor(self.geometry.l, d_k)
            self.phi_v = Compressor(self.geometry.l, d_v)
        self.gate = Gate(d_k, n_kv_groups, gate, gate_tau)
        self.o = nn.Linear(n_heads * d_v, dim, bias=False)

    def reset_parameters(self) -> None:
        for child in self.children():
            child.reset_parameters()

    def forward(self, x: Tensor, cu_seqlens: Optional[Tensor] = None) -> Tensor:
        if not isinstance(x, Tensor):
            raise TypeError(f"x: is {_describe(x)}; allowed: a tensor [B, S, {self.q.in_features}]")
        if x.dim() != 3 or x.shape[2] != self.q.in_features:
            raise ValueError(f"x: is {list(x.shape)}; allowed: [B, S, {self.q.in_features}]")
        bounds = _packing(cu_seqlens)
        if bounds is not None and (bounds.dim() != 1 or bounds.numel() < 2):
            raise ValueError(f"cu_seqlens: is {_describe(cu_seqlens)}; allowed: [documents + 1], at least one document")
        plain = self.q(x).unflatten(-1, (self.n_heads, -1))
        turned = rope_rotations(x, plain.shape[3], self.rope_base, self.rope_scale, cu_seqlens)
        keys = (getattr(self, f"k_{branch}")(x) for branch in ("cmp", "sel", "win"))
        values = (getattr(self, f"v_{branch}")(x) for branch in ("cmp", "sel", "win"))
        o = attention(
            rotate(plain, *turned),
            tuple(rotate(k.unflatten(-1, (self.n_kv_groups, -1)), *turned) for k in keys),
            tuple(v.unflatten(-1, (self.n_kv_groups, -1)) for v in values),
            self.gate(plain),
            geometry=self.geometry,
            cu_seqlens=bounds,
            phi_k=self.phi_k.weights(plain.dtype) if self.phi_k is not None else None,
            phi_v=self.phi_v.weights(plain.dtype) if self.phi_v is not None else None,
            backend=self.backend,
        )
        return self.o(o.flatten(2))


def rope_rotations(
    x: Tensor, d_k: int, base: float, scale: float, cu_seqlens: Optional[Tensor]
) -> tuple[Tensor, Tensor]:
    """cos and sin [S,1,d_k/2] of x's tokens; angles in fp32."""
    position = torch.arange(x.shape[1], device=x.device, dtype=torch.float32)
    if cu_seqlens is not None:
        bounds = cu_seqlens.to(x.device)
        own = torch.searchsorted(bounds[1:].contiguous(), torch.arange(x.shape[1], device=x.device), right=True)
        position = position - bounds[own]
    pair = torch.arange(0, d_k, 2, device=x.device, dtype=torch.float32)
    frequency = torch.exp(pair * (-math.log(base) / d_k))
    angle = _wide(torch.outer(position / scale, frequency).to(torch.promote_types(x.dtype, torch.float32)))
    return angle.cos().unsqueeze(1), angle.sin().unsqueeze(1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [B,S,heads,D]: every pair (2i, 2i+1) turned, in fp32 (fp64 for fp64)."""
    even, odd = _wide(x).unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2).to(x.dtype)


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    return nn.functional.linear(x, layer.weight.to(x.dtype), layer.bias.to(x.dtype))
