#!/usr/bin/env python3
"""What nsa-train does, in plain PyTorch: the same weights from a seed, the same batches, the same steps.

    python3 python/example/train.py fixtures/text/corpus.txt --steps 50          # m7c_125m, bf16
    python3 python/example/train.py fixtures/text/corpus.txt --steps 50 --tiny   # configs/train/tiny.yaml's sizes, fp32

Its losses are those of nsa-train --config configs/models/m7c_125m.yaml --set train.steps=50 train.log_every=1 within
0.002 in bf16, where kernels round at other places (one H200: 0.00035 at most, 0.0001 on average).
"""

import argparse
import math
import time
from pathlib import Path

import torch

import nsa

parser = argparse.ArgumentParser()
parser.add_argument("text", type=Path)
parser.add_argument("--steps", type=int, default=50)
parser.add_argument("--batch", type=int, default=1)
parser.add_argument("--warmup", type=int, default=2)
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
parser.add_argument("--tiny", action="store_true")
parser.add_argument("--fp32", action="store_true")
parser.add_argument("--compile", action="store_true")
asked = parser.parse_args()

tiny = nsa.ModelConfig(64, 3, 4, 2, 16, 16, 256, 10000.0, nsa.Geometry(8, 4, 16, 4, 32))
config, dtype, length, peak = (
    (tiny, torch.float32, 128, 3e-3) if asked.tiny else (nsa.ModelConfig(), torch.bfloat16, 2048, 2e-4)
)
dtype = torch.float32 if asked.fp32 else dtype
torch.manual_seed(1337)
model = nsa.LanguageModel(config).to(asked.device, dtype)
loss_of = torch.compile(model.loss, fullgraph=True) if asked.compile else model.loss
wide = [p.detach().float().clone().requires_grad_() for p in model.parameters()]  # near 1 bf16 has steps of 0.8 %
adam = torch.optim.AdamW(wide, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, fused=True)
text = torch.frombuffer(bytearray(asked.text.read_bytes()), dtype=torch.uint8).long()
rows = text.unfold(0, length + 1, length)  # overlap by the token that is only predicted

for step in range(asked.steps):
    began = time.perf_counter()
    batch = rows[torch.arange(step * asked.batch, (step + 1) * asked.batch) % len(rows)].to(asked.device)
    loss = loss_of(batch)
    loss.backward()
    gradients = [p.grad.float() for p in model.parameters()]
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    torch._foreach_mul_(gradients, (1.0 / norm).clamp(max=1.0))
    done = (step - asked.warmup) / max(1, asked.steps - 1 - asked.warmup)
    rate = peak * ((step + 1) / asked.warmup if step < asked.warmup else 0.5 + 0.5 * math.cos(math.pi * done))
    for group in adam.param_groups:
        group["lr"] = rate
    for parameter, gradient in zip(wide, gradients):
        parameter.grad = gradient
    adam.step()
    with torch.no_grad():
        torch._foreach_copy_(list(model.parameters()), wide)
    model.zero_grad()
    print(f"{step + 1} loss {loss.item():.7f} norm {norm.item():.6f} tok/s {batch[:, 1:].numel() / (time.perf_counter() - began):.0f}")
