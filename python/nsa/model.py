"""The language model of nsa-train: its checkpoints load here, and weights that are saved here load there."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Optional, Union

import torch
from torch import Tensor, nn

from nsa.arguments import check_model
from nsa.files import PARAMETERS, load_facts, load_tensors
from nsa.functional import PAPER, Geometry
from nsa.module import NativeSparseAttention

_SIZES = ("dim", "n_layers", "n_heads", "n_kv_groups", "d_k", "d_v", "vocab")
_NUMBERS = (*_SIZES, "rope_base", "gate_tau")


@dataclass(frozen=True)
class ModelConfig:
    """The fields of a model's configuration file."""

    dim: int = 768
    n_layers: int = 12
    n_heads: int = 12
    n_kv_groups: int = 2
    d_k: int = 64
    d_v: int = 64
    vocab: int = 256
    rope_base: float = 10000.0
    nsa: Geometry = PAPER
    phi: str = "avg"
    gate: str = "softmax"
    gate_tau: float = 1.0

    @staticmethod
    def of_checkpoint(file: Union[str, os.PathLike]) -> ModelConfig:
        told = load_facts(file)["config"]
        sizes = {name: int(told[f"model.{name}"]) for name in _SIZES}
        return ModelConfig(
            **sizes,
            rope_base=float(told["model.rope_base"]),
            nsa=Geometry(*(int(told[f"nsa.{name}"]) for name in Geometry._fields)),
            phi=told["nsa.phi"],
            gate=told["nsa.gate"],
            gate_tau=float(told["nsa.gate_tau"]),
        )


class Mlp(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.fc1 = nn.Linear(dim, 4 * dim, bias=False)
        self.fc2 = nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(nn.functional.silu(self.fc1(x)))


class Block(nn.Module):
    def __init__(self, config: ModelConfig, **options):
        super().__init__()
        self.norm_attention = nn.RMSNorm(config.dim, eps=1e-6)
        self.attention = NativeSparseAttention(
            config.dim,
            config.n_heads,
            config.n_kv_groups,
            config.d_k,
            config.d_v,
            geometry=config.nsa,
            phi=config.phi,
            gate=config.gate,
            gate_tau=config.gate_tau,
            rope_base=config.rope_base,
            **options,
        )
        self.norm_mlp = nn.RMSNorm(config.dim, eps=1e-6)
        self.mlp = Mlp(config.dim)

    def forward(self, x: Tensor, cu_seqlens: Optional[Tensor] = None) -> Tensor:
        x = x + self.attention(self.norm_attention(x), cu_seqlens)
        return x + self.mlp(self.norm_mlp(x))


class LanguageModel(nn.Module):
    """tokens [B,S] int64 -> logits [B,S,vocab]. Options: `rope_scale`, `backend` of NativeSparseAttention."""

    def __init__(self, config: ModelConfig, **options):
        super().__init__()
        check_model(config.nsa, **{name: getattr(config, name) for name in _NUMBERS})
        self.config = config
        self.embedding = nn.Embedding(config.vocab, config.dim)
        self.layers = nn.ModuleList(Block(config, **options) for _ in range(config.n_layers))
        self.norm = nn.RMSNorm(config.dim, eps=1e-6)
        self.head = nn.Linear(config.dim, config.vocab, bias=False)

    @staticmethod
    def from_checkpoint(file: Union[str, os.PathLike], **options) -> LanguageModel:
        """The model of a checkpoint of nsa-train, in the dtype of its weights. ValueError for a damaged file (files.py)."""
        weights = load_tensors(file, PARAMETERS)
        model = LanguageModel(ModelConfig.of_checkpoint(file), **options).to(weights["head.weight"].dtype)
        model.load_state_dict(weights)
        return model

    def forward(self, tokens: Tensor, cu_seqlens: Optional[Tensor] = None) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, cu_seqlens)
        return self.head(self.norm(x))

    def loss(self, tokens: Tensor) -> Tensor:
        """Mean cross-entropy of every token but the first, in fp32 (fp64 for fp64). No packed batches."""
        logits = self(tokens[:, :-1]).flatten(0, 1)
        wide = logits if logits.dtype == torch.float64 else logits.float()
        return nn.functional.cross_entropy(wide, tokens[:, 1:].flatten())
