"""The limits of an adapter, and small sizes that keep to them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

# Every key that can be limited, with the sizes that a quick check would rather have.
PREFERRED = {
    "l_sel": (8, 16, 32, 64),
    "l": (8, 16, 32, 64),
    "d": (4, 8, 16, 32, 64),
    "n_sel": (3, 4, 8, 16),
    "w": (5, 8, 16),
    "d_k": (8, 16, 32, 64),
    "d_v": (8, 16, 32, 64),
    "heads_per_group": (2, 1, 4, 16),
    "tokens": (37, 70, 133, 261, 64, 128, 256),
}
LARGEST = 4096
FEWEST_BLOCKS = 3  # n_sel holds the three blocks that the paper always chooses
BOUNDS = ("min", "max", "multiple_of")
WORDS = "an integer, a list of integers, or a dict of min, max, multiple_of, all from 1 up"


def complaint(limits: object) -> str:
    """What may stand under "limits" instead, empty where it is right."""
    if not isinstance(limits, dict):
        return f"a dict of {', '.join(PREFERRED)}, equal"
    for key, limit in limits.items():
        if key == "equal":
            if not _is_equal(limit):
                return f"equal: a list of lists of two or more of {', '.join(PREFERRED)}"
        elif key not in PREFERRED:
            return f"no such key {key!r}; there are {', '.join(PREFERRED)}, equal"
        elif not _is_limit(limit):
            return f"{key}: {WORDS}"
    if smallest(limits) is None:
        return f"limits that sizes up to {LARGEST} can keep (d divides l and l_sel, l <= l_sel, n_sel >= 3)"
    return ""


def smallest(limits: dict) -> dict[str, int] | None:
    """Small sizes that keep to all limits, or None where there are none."""
    groups = _groups(limits.get("equal", ()))
    options = {key: values for group in groups for values in [_options(group, limits)] for key in group}
    for l_sel, block, stride in itertools.product(options["l_sel"], options["l"], options["d"]):
        chosen = {"l_sel": l_sel, "l": block, "d": stride}
        if block > l_sel or block % stride or l_sel % stride or not _agree(chosen, groups):
            continue
        for group in groups:
            own = [chosen[key] for key in group if key in chosen] or options[group[0]][:1]
            if group == ["tokens"]:  # enough for every block to be seen, chosen and left out
                own = [count for count in options["tokens"] if count >= 4 * l_sel] or own
            if not own:
                return None
            chosen.update(dict.fromkeys(group, own[0]))
        return chosen
    return None


def _groups(equal: Iterable[Iterable[str]]) -> list[list[str]]:
    """The keys, those that must be equal together."""
    groups = [[key] for key in PREFERRED]
    for tied in equal:
        joined = [group for group in groups if set(group) & set(tied)]
        groups = [group for group in groups if group not in joined] + [sum(joined, [])]
    return groups


def _options(group: list[str], limits: dict) -> list[int]:
    """A dozen values at most that go with the limits of every key of a group, those preferred first."""
    preferred = PREFERRED[group[0]]
    every = [*preferred, *(value for value in range(1, LARGEST + 1) if value not in preferred)]
    least = FEWEST_BLOCKS if "n_sel" in group else 1
    fitting = (value for value in every if value >= least and all(_fits(value, limits.get(key)) for key in group))
    return list(itertools.islice(fitting, 12))


def _agree(chosen: dict[str, int], groups: list[list[str]]) -> bool:
    return all(len({chosen[key] for key in group if key in chosen}) <= 1 for group in groups)


def _fits(value: int, limit: object) -> bool:
    if limit is None:
        return True
    if isinstance(limit, dict):
        in_range = limit.get("min", 1) <= value <= limit.get("max", value)
        return in_range and value % limit.get("multiple_of", 1) == 0
    return value == limit if isinstance(limit, int) else value in limit


def _is_limit(limit: object) -> bool:
    if isinstance(limit, dict):
        return bool(limit) and all(key in BOUNDS and _is_size(value) for key, value in limit.items())
    if isinstance(limit, (list, tuple)):
        return bool(limit) and all(_is_size(value) for value in limit)
    return _is_size(limit)


def _is_size(value: object) -> bool:
    return type(value) is int and value >= 1


def _is_equal(groups: object) -> bool:
    def is_group(group: object) -> bool:
        if not isinstance(group, (list, tuple)) or len(group) < 2:
            return False
        return all(isinstance(key, str) and key in PREFERRED for key in group)

    return isinstance(groups, (list, tuple)) and bool(groups) and all(is_group(group) for group in groups)
