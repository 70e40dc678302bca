#!/usr/bin/env python3
"""Tokens per second of one model in training with our attention, with another's and with dense: one run, one GPU.

    python3 python/example/compare.py fixtures/text/corpus.txt --json compare.json
    python3 python/example/compare.py --variants nsa,dense --modes eager --batch 1

The model is m7c_125m and the step that of train.py at a constant rate, on random tokens. Variants, all with RoPE:
    nsa         NativeSparseAttention as it is: keys and values of its own for each branch
    nsa-shared  the same with one key and value for all branches, which is what mdy666's layer has
    dense       causal scaled_dot_product_attention of the same heads
    mdy666      the functions of mdy666/Scalable-Flash-Native-Sparse-Attention, whose checkout PYTHONPATH must name
    fla         does not serve this model, and the output says why
Modes: eager; compile, the loss by torch.compile; reduce-overhead, its mode of that name; graph, the whole compiled
step (optimizer too) as one CUDA graph. A text makes train.py run first and its 50 losses part of the output.

Exit status: 0 all was measured, 1 something failed, 2 usage, 4 no GPU (--tiny tries all of it on a CPU, in fp32).
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
import traceback
from pathlib import Path

import torch

import nsa
from compared import LAYERS, MODES, NOT_APPLICABLE, backend_for, not_applicable

WARMUP = 12
VARIANTS = [*LAYERS, *NOT_APPLICABLE]
TINY = nsa.ModelConfig(64, 3, 4, 2, 16, 16, 256, 10000.0, nsa.Geometry(8, 4, 16, 4, 32))


def names_of(allowed):
    def read(text):
        for name in text.split(","):
            if name not in allowed:
                raise argparse.ArgumentTypeError(f"is {name!r}; allowed: {', '.join(allowed)}, with commas between")
        return text.split(",")

    return read


def sizes(text):
    if not all(size.isdigit() and int(size) > 0 for size in text.split(",")):
        raise argparse.ArgumentTypeError(f"is {text!r}; allowed: whole numbers from 1 on, with commas between")
    return [int(size) for size in text.split(",")]


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="?", type=Path)
    parser.add_argument("--variants", type=names_of(VARIANTS), default=VARIANTS)
    parser.add_argument("--modes", type=names_of(MODES), default=list(MODES))
    parser.add_argument("--batch", type=sizes, default=[8, 1])
    parser.add_argument("--steps", type=lambda text: sizes(text)[0], default=60, help=f"timed, after {WARMUP} that are not")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tiny", action="store_true")
    return parser.parse_args()


class Training:
    """A model, the step of train.py on one batch after another, and no wait for the GPU in it."""

    def __init__(self, layer, config, tokens, dtype):
        torch.manual_seed(1337)
        self.model = nsa.LanguageModel(config, backend=backend_for(tokens))
        for block in self.model.layers if layer else ():
            block.attention = layer(config)
        self.model.to(tokens.device, dtype)
        self.parameters = list(self.model.parameters())
        self.wide = [p.detach().float().clone().requires_grad_() for p in self.parameters]
        self.adam = torch.optim.AdamW(
            self.wide, lr=2e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, fused=True, capturable=tokens.is_cuda
        )
        self.tokens, self.batch, self.loss, self.loss_of, self.steps = tokens, tokens[0].clone(), None, self.model.loss, 0

    def fetch(self):
        self.batch.copy_(self.tokens[self.steps % len(self.tokens)])
        self.steps += 1

    def update(self):
        loss = self.loss_of(self.batch)
        loss.backward()
        gradients = [p.grad.float() for p in self.parameters]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        torch._foreach_mul_(gradients, (1.0 / norm).clamp(max=1.0))
        for parameter, gradient in zip(self.wide, gradients):
            parameter.grad = gradient
        self.adam.step()
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, self.wide)
        self.model.zero_grad()
        self.loss = loss.detach()


def timed(training, update, steps):
    """Milliseconds of each step: on a GPU between events, so that the host may run ahead as it does in training."""

    def now():
        if not training.tokens.is_cuda:
            return time.perf_counter() * 1e3
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    marks = []
    for step in range(WARMUP + steps):
        if step >= WARMUP:
            marks.append(now())
        torch.compiler.cudagraph_mark_step_begin()
        training.fetch()
        update()
    marks.append(now())
    if not training.tokens.is_cuda:
        return [end - begin for begin, end in zip(marks, marks[1:])]
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) for begin, end in zip(marks, marks[1:])]


def measured(training, mode, steps):
    update = MODES[mode](training)
    took = sorted(timed(training, update, steps))
    loss = training.loss.item()
    if not loss < 100:  # NaN too
        raise ArithmeticError(f"after {training.steps} steps the loss is {loss}")
    rate = [training.batch[:, 1:].numel() / (ms * 1e-3) for ms in took]
    return {
        "tok_per_s": round(statistics.median(rate)),
        "p10": round(rate[int(0.9 * (len(rate) - 1))]),
        "p90": round(rate[int(0.1 * (len(rate) - 1))]),
        "loss": loss,
        "parameters": sum(p.numel() for p in training.parameters),
    }


def rows(asked, config, device, dtype, length):
    """A result for each variant, batch and mode; what failed has an error."""
    for variant in asked.variants:
        if variant in NOT_APPLICABLE:
            yield {"variant": variant, "batch": "-", "mode": "-", "not_applicable": NOT_APPLICABLE[variant]}
            continue
        for batch in asked.batch:
            torch.compiler.reset()
            generator = torch.Generator().manual_seed(1)
            tokens = torch.randint(config.vocab, (8, batch, length + 1), generator=generator).to(device)
            training = None
            for mode in asked.modes:
                row = {"variant": variant, "batch": batch, "mode": mode}
                try:
                    reason = not_applicable(variant, mode, device)
                    if reason:
                        yield row | {"not_applicable": reason}
                        continue
                    training = training or Training(LAYERS[variant], config, tokens, dtype)
                    yield row | measured(training, mode, asked.steps)
                except Exception as error:
                    traceback.print_exc()
                    yield row | {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
                    training = None  # a step that broke off may have left anything


def told(row):
    figures = row.get("not_applicable") or row.get("error") or "{tok_per_s:9,} {p10:9,} {p90:9,}  loss {loss:.4f}".format(**row)
    verdict = "not applicable: " if "not_applicable" in row else "FAILED: " if "error" in row else ""
    return f"{row['variant']:11} {row['batch']:>3} {row['mode']:16} {verdict}{figures}"


def example(asked):
    """What train.py prints for the text: the losses of ours, to be laid beside nsa-train's."""
    command = [sys.executable, str(Path(__file__).with_name("train.py")), str(asked.text), "--steps", "50"]
    done = subprocess.run(command + ["--tiny"] * asked.tiny, stdout=subprocess.PIPE, text=True)
    print(done.stdout, end="", flush=True)
    if done.returncode:
        return {"error": f"train.py ended with {done.returncode}"}
    return {"losses": [float(line.split()[2]) for line in done.stdout.splitlines()]}


def main():
    asked = options()
    if not torch.cuda.is_available() and not asked.tiny:
        print("compare.py: there is no GPU here; --tiny tries it on a CPU", file=sys.stderr)
        return 4
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config, dtype, length = (TINY, torch.float32, 128) if asked.tiny else (nsa.ModelConfig(), torch.bfloat16, 2048)
    machine = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    result = {"device": machine, "torch": torch.__version__, "S": length, "dtype": str(dtype), "steps": asked.steps, "rows": []}
    if asked.text:
        result["example"] = example(asked)
    print(f"\n{machine}, torch {torch.__version__}, S {length}, {dtype}: tokens per second, median and 10th, 90th percentile")
    print(f"{'variant':11} {'B':>3} {'mode':16} {'median':>9} {'p10':>9} {'p90':>9}")
    for row in rows(asked, config, device, dtype, length):
        result["rows"].append(row)
        print(told(row), flush=True)
        if asked.json:  # after each row: a run that is cut off has measured what it has
            asked.json.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    return 1 if any("error" in x for x in (*result["rows"], result.get("example", {}))) else 0


if __name__ == "__main__":
    sys.exit(main())
