"""What an adapter says of itself, checked: every mistake at once, with what came and what is allowed.

The client chooses by these claims what it compares and how. A claim that cannot be true would make it pass over a
fault, so it is refused before anything is computed.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from typing import Any, Callable, NamedTuple

from . import sizes

FUNCTIONS = (
    "attend",
    "compress",
    "attend_compressed",
    "select",
    "attend_selected",
    "attend_window",
    "combine",
    "attention",
)
# Positional arguments in their order, then those by keyword.
PARAMETERS = {
    "attend": (
        ("q", "k_cmp", "v_cmp", "k_sel", "v_sel", "k_win", "v_win", "gates"),
        ("geometry", "cu_seqlens", "blocks"),
    ),
    "compress": (("k", "v"), ("geometry", "cu_seqlens")),
    "attend_compressed": (("q", "k_cmp", "v_cmp"), ("geometry", "cu_seqlens")),
    "select": (("q", "k_cmp"), ("geometry", "cu_seqlens")),
    "attend_selected": (("q", "k", "v", "blocks"), ("geometry", "cu_seqlens")),
    "attend_window": (("q", "k", "v"), ("geometry", "cu_seqlens")),
    "combine": (("gates", "o_cmp", "o_sel", "o_win"), ()),
    "attention": (("q", "k", "v", "gates"), ("geometry", "cu_seqlens")),
}
WITH_LSE = ("attend_compressed", "attend_selected", "attend_window")
RETURNED = {"compress": ("k_cmp", "v_cmp"), "select": ("blocks",)}
WITH_WINDOW = ("attend", "attend_window", "attention")
CHOOSING = ("attend", "select", "attention")

LISTS = {
    "computes": FUNCTIONS,
    "device": ("cpu", "cuda"),
    "dtypes": ("fp64", "fp32", "bf16", "fp16"),
    "layouts": ("batched", "packed"),
}
LONGEST = 200  # characters of a text
OPTIONAL = ("blocks", "documents", "repeatable", "limits")
KEYS = (
    *("name", "version", *LISTS, "gradients", "window", "forced", "ties", "importance", "shared_kv", "lse"),
    *OPTIONAL,
)


class Mistake(NamedTuple):
    """One line for the person who writes the adapter."""

    key: str
    value: str
    allowed: str
    where: str  # FILE:LINE

    def __str__(self) -> str:
        return f"{self.where}: {self.key} = {self.value}: {self.allowed}"


def returns(op: str) -> tuple[str, ...]:
    """Names of what a function gives back; the last of ("o", "lse") may be left out."""
    return RETURNED.get(op, ("o", "lse") if op in WITH_LSE else ("o",))


def mistakes(description: object, function: Callable[[str], Any], where: str) -> list[Mistake]:
    """All of them. `function` looks up what the adapter defines under a name, or gives None."""
    if not is_plain(description):
        return [Mistake("describe()", type(description).__name__, "a dict of plain data: what JSON can hold", where)]
    found = []
    for key, value in description.items():
        allowed = _complaint(key, value)
        if allowed:
            found.append(Mistake(str(key), repr(value), allowed, where))
    for key in KEYS:
        if key not in description and key not in OPTIONAL:
            found.append(Mistake(key, "(missing)", f"required: {ALLOWED[key]}", where))
    if not _complaint("computes", description.get("computes")):
        wrong = {mistake.key for mistake in found}
        for key, allowed in _contradictions(description):
            if key not in wrong:
                found.append(Mistake(key, repr(description[key]), allowed, where))
        for name in description["computes"]:
            complaint = _function_complaint(name, function(name))
            if complaint:
                found.append(Mistake("computes", repr(name), complaint, where))
    return found


def _complaint(key: str, value: object) -> str:
    """What may stand there instead, taken by itself; empty where the value is right."""
    if key not in KEYS:
        return f"no such key; there are {_words(KEYS)}"
    if key == "limits":
        return sizes.complaint(value)
    if value is None and key in NEEDED_BY:
        return ""
    right = _is_list_of(value, LISTS[key]) if key in LISTS else RIGHT[key](value)
    return "" if right else ALLOWED[key]


def _contradictions(description: dict) -> Iterator[tuple[str, str]]:
    """Claims that do not go with the list of functions, each with what is allowed."""
    computes = description["computes"]
    for key, functions in NEEDED_BY.items():
        names = [name for name in functions if name in computes]
        if names and description.get(key) is None:
            yield key, f"{ALLOWED[key]}: {names[0]} is computed"
    if description.get("lse") is not None and not set(WITH_LSE) & set(computes):
        yield "lse", f"None: nothing that returns one is computed ({_words(WITH_LSE)})"
    if description.get("shared_kv") is False and "attention" in computes:
        yield "shared_kv", "True: attention has one k and v for all branches"
    if description.get("gradients") is True and set(computes) == {"select"}:
        yield "gradients", "False: select is not differentiated"


def _function_complaint(name: str, defined: object) -> str:
    """Is it there, and can it be called as the host calls it?"""
    positional, keywords = PARAMETERS[name]
    call = f"{name}({', '.join([*positional, *(['*'] if keywords else []), *keywords])})"
    if defined is None:
        return f"the adapter must define {call}"
    if not callable(defined):
        return f"must be a function {call}, not {type(defined).__name__}"
    try:
        signature = inspect.signature(defined)
    except (TypeError, ValueError):  # a function of C has none that can be read
        return ""
    try:
        signature.bind(*positional, **dict.fromkeys(keywords))
    except TypeError as error:
        return f"must take {call}: {error}"
    return ""


def is_plain(value: object) -> bool:
    """A dict that travels as JSON."""
    if not isinstance(value, dict):
        return False
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _is_list_of(value: object, words: tuple[str, ...]) -> bool:
    if not isinstance(value, (list, tuple)) or not value:
        return False
    return all(isinstance(word, str) and word in words for word in value) and len(set(value)) == len(value)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value.strip()) <= LONGEST


def _is_forced(value: object) -> bool:
    if not isinstance(value, dict) or set(value) != {"first", "last"}:
        return False
    return all(type(count) is int and count >= 0 for count in value.values())


def _words(words: tuple[str, ...]) -> str:
    return ", ".join(words)


NEEDED_BY = {
    "window": WITH_WINDOW,
    "forced": CHOOSING,
    "ties": CHOOSING,
    "importance": CHOOSING,
}
ALLOWED = {
    **{key: f"a list, not empty, each once, of {_words(words)}" for key, words in LISTS.items()},
    "name": f"a text of {LONGEST} characters at most",
    "version": f"a text of {LONGEST} characters at most",
    "gradients": "True or False",
    "window": '"w" or "w+1"',
    "forced": '{"first": k, "last": k} with integers from 0 up',
    "ties": '"lower", "higher" or "any"',
    "importance": f'a text of {LONGEST} characters at most, "paper" for the scores of the paper',
    "shared_kv": "True or False",
    "lse": '"e", "2" or None',
    "blocks": '"any", or "own": attend_selected takes only choices that hold the token\'s own block',
    "documents": '"any", or "not empty": no document of a packed batch may have no token',
    "repeatable": "True or False",
}
RIGHT: dict[str, Callable[[Any], bool]] = {
    "name": _is_text,
    "version": _is_text,
    "gradients": lambda value: isinstance(value, bool),
    "window": lambda value: value in ("w", "w+1"),
    "forced": _is_forced,
    "ties": lambda value: value in ("lower", "higher", "any"),
    "importance": _is_text,
    "shared_kv": lambda value: isinstance(value, bool),
    "lse": lambda value: value in ("e", "2", None),
    "blocks": lambda value: value in ("any", "own"),
    "documents": lambda value: value in ("any", "not empty"),
    "repeatable": lambda value: isinstance(value, bool),
}
