"""A call as two files that need nothing of ours: inputs.pt, and repro.py, which makes the call again."""

from __future__ import annotations

import json
import os
import textwrap
from typing import BinaryIO, NamedTuple

import torch

from .adapter import MODULE
from .calls import Case, Tensors
from .description import PARAMETERS, returns

WIDTH = 120
SCRIPT, INPUTS = "repro.py", "inputs.pt"

TEMPLATE = """\
{title}
import importlib.util, pathlib, sys, types, warnings
warnings.filterwarnings("ignore", "Failed to initialize NumPy")
import torch

spec = importlib.util.spec_from_file_location({module}, {adapter})
adapter = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(adapter)
saved = torch.load(pathlib.Path(__file__).with_name({inputs}), map_location={device}, weights_only=True)
x, expected, geometry = saved["inputs"], saved["expected"], types.SimpleNamespace(**saved["geometry"] or {{}})
{before}got = {call}
got = dict(zip({names}, got if isinstance(got, (tuple, list)) else [got]))
{after}
def told(x):
    most = x.double().nan_to_num(0, 0, 0).abs().max() if x.numel() else 0
    return f"{{(~x.isfinite()).sum()}} of {{x.numel()}} not finite, the others up to {{most:.3g}}"

for name, value in got.items():
    print(name, f"{{value.dtype}} {{[*value.shape]}}: {{told(value)}}" if torch.is_tensor(value) else value)
    if torch.is_tensor(value) and name in expected:
        print("    expected:", told(expected[name]), "\\n    difference:", told(value - expected[name]))
"""
BACKWARD = """\
d, leaves = saved["cotangents"], {f"gradient of {name}": tensor for name, tensor in x.items() if tensor.requires_grad}
got.update(zip(leaves, torch.autograd.grad([got[n] for n in d], [*leaves.values()], [*d.values()], allow_unused=True)))
"""
# Of a call that wrote to what it was given.
COPIES = """\
copies = {name: tensor.detach().clone() for name, tensor in x.items()}
"""
WRITTEN = """\
print("inputs that it wrote to:", [name for name in x if not torch.allclose(x[name], copies[name], 0, 0, True)])
"""


class Saved(NamedTuple):
    """A call, and what is known of it."""

    case: Case
    cotangents: Tensors  # of the backward pass; none: the forward pass alone
    expected: Tensors  # outputs, and "gradient of NAME"
    wrote: bool  # to its inputs
    title: str  # what stands at the script's head


def write(folder: str, adapter: str, call: Saved) -> None:
    """Both files."""
    case = call.case
    for name in case.gradients:
        case.inputs[name].requires_grad_()
    contents = {
        "inputs": case.inputs,
        "geometry": None if case.geometry is None else vars(case.geometry),
        "cu_seqlens": None if case.cu_seqlens is None else torch.tensor(case.cu_seqlens, dtype=torch.int32),
        "cotangents": call.cotangents,
        "expected": call.expected,
    }
    with _created(os.path.join(folder, INPUTS)) as file:
        torch.save(contents, file)
    with _created(os.path.join(folder, SCRIPT)) as file:
        file.write(_script(adapter, call).encode())


def _script(adapter: str, call: Saved) -> str:
    """Only what this call needs, so that it can be read at a glance."""
    return TEMPLATE.format(
        title=textwrap.fill(" ".join(call.title.split()), WIDTH, initial_indent="# ", subsequent_indent="# "),
        module=_text(MODULE),
        adapter=_text(adapter),
        inputs=_text(INPUTS),
        device=_text(call.case.device),
        before=COPIES if call.wrote else "",
        call=_call(call.case),
        names="[" + ", ".join(_text(name) for name in returns(call.case.op)) + "]",
        after=(BACKWARD if call.cotangents else "") + (WRITTEN if call.wrote else ""),
    )


def _call(case: Case) -> str:
    positional, keywords = PARAMETERS[case.op]
    values = {
        "geometry": "geometry",
        "cu_seqlens": "None" if case.cu_seqlens is None else 'saved["cu_seqlens"].cpu()',
        "blocks": 'x["blocks"]' if "blocks" in case.inputs else "None",
    }
    arguments = ", ".join(f"x[{_text(name)}]" for name in positional)
    named = ", ".join(f"{name}={values[name]}" for name in keywords)
    both = ", ".join(part for part in (arguments, named) if part)
    line = f"adapter.{case.op}({both})"
    return line if len(f"got = {line}") <= WIDTH else f"adapter.{case.op}({arguments},\n    {named})"


def _text(word: str) -> str:
    """A string as it stands in a program."""
    return json.dumps(word, ensure_ascii=False)


def _created(path: str) -> BinaryIO:
    """Never through a link, which would lead to what is somebody else's."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    return os.fdopen(os.open(path, flags, 0o644), "wb")
