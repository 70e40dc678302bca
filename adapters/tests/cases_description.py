"""What describe() may say, and the sizes that its limits allow."""

from __future__ import annotations

import unittest

from package import description, sizes

SOUND = {
    "name": "x",
    "version": "1",
    "computes": ["attend_window", "select"],
    "device": ["cpu"],
    "dtypes": ["fp32"],
    "layouts": ["batched"],
    "gradients": True,
    "window": "w",
    "forced": {"first": 1, "last": 2},
    "ties": "lower",
    "importance": "paper",
    "shared_kv": False,
    "lse": "e",
}


def attend_window(q, k, v, *, geometry, cu_seqlens):
    """As it should be."""


def select(q, k_cmp, **anything):
    """Also right: it takes what comes."""


def attention(q, k, v, gates, *, geometry, cu_seqlens):
    """As it should be."""


DEFINED = {"attend_window": attend_window, "select": select, "attention": attention}


def keys_of(value: object, **functions) -> list[str]:
    return [mistake.key for mistake in description.mistakes(value, {**DEFINED, **functions}.get, "x.py:3")]


class Descriptions(unittest.TestCase):
    def test_sound(self):
        for change in (
            {},
            {"computes": ("select",), "gradients": False, "window": None, "lse": None},
            {"computes": ["attend_window"], "forced": None, "ties": None, "importance": None},
            {"computes": ["attention"], "shared_kv": True, "lse": None},
            {"window": "w+1", "ties": "any", "importance": "by the maximum", "repeatable": False},
            {"limits": {"heads_per_group": [16, 32], "d_k": {"min": 16, "multiple_of": 16}, "w": 4}},
            {"limits": {"equal": [["l", "d", "l_sel"], ["d_k", "d_v"]]}},
        ):
            self.assertEqual(keys_of({**SOUND, **change}), [], change)

    def test_every_value_that_is_wrong(self):
        wrong = {
            "name": ["", " ", 1, None],
            "version": [1.0],
            "computes": [[], "select", ["fly"], ["select", "select"], None, [["select"]]],
            "device": [["tpu"], [], "cpu"],
            "dtypes": [["fp8"], [], None],
            "layouts": [["both"], []],
            "gradients": ["yes", 1, None],
            "window": ["w-1", 3, None],
            "forced": [{}, {"first": 1}, {"first": -1, "last": 2}, {"first": True, "last": 2}, [1, 2], None],
            "ties": ["both", None, ["lower"]],
            "importance": ["", 1, None],
            "shared_kv": [None, 0],
            "lse": ["10", 2, ["e"]],
            "repeatable": [None, 1],
            "limits": [
                None,
                {"d": 0},
                {"d": True},
                {"d": []},
                {"d": {}},
                {"d": {"most": 3}},
                {"d": {"min": 9, "max": 8}},
                {"width": 3},
                {"equal": ["l", "d"]},
                {"equal": [["l"]]},
                {"equal": [["l", ["d"]]]},
                {"equal": [["l", "l_sel"]], "l": [16], "l_sel": [32]},
                {"l": 48, "l_sel": 32},
                {"d": 3, "l_sel": [8, 16]},
                {"n_sel": 2},
            ],
            "colour": ["red"],
        }
        for key, values in wrong.items():
            for value in values:
                with self.subTest(key=key, value=value):
                    self.assertEqual(keys_of({**SOUND, key: value}), [key])

    def test_every_key_is_needed(self):
        for key in SOUND:
            less = {name: value for name, value in SOUND.items() if name != key}
            self.assertIn(key, keys_of(less))

    def test_contradictions(self):
        self.assertEqual(keys_of({**SOUND, "computes": ["select"], "gradients": False}), ["lse"])
        self.assertEqual(keys_of({**SOUND, "computes": ["attention"], "lse": None}), ["shared_kv"])
        self.assertEqual(keys_of({**SOUND, "computes": ["select"], "lse": None, "window": None}), ["gradients"])

    def test_functions_that_cannot_be_called(self):
        for function in (None, 3, lambda q, k: 0, lambda q, k, v, geometry: 0, lambda *, q: 0):
            self.assertEqual(keys_of(SOUND, attend_window=function), ["computes"])

    def test_what_is_no_description(self):
        for value in (None, [], {"name": float("nan")}, {"name": object()}, {1: {2}}):
            self.assertEqual(keys_of(value), ["describe()"])

    def test_a_mistake_is_one_line(self):
        (mistake,) = description.mistakes({**SOUND, "ties": "both"}, DEFINED.get, "x.py:3")
        self.assertEqual(str(mistake), """x.py:3: ties = 'both': "lower", "higher" or "any\"""")

    def test_all_at_once(self):
        wrong = {**SOUND, "ties": 1, "window": 2, "device": 3, "limits": 4, "colour": 5}
        self.assertEqual(sorted(keys_of(wrong)), ["colour", "device", "limits", "ties", "window"])


class Sizes(unittest.TestCase):
    def test_small_sizes_keep_to_limits(self):
        limits = {
            "heads_per_group": [16, 32],
            "d_k": {"min": 48, "multiple_of": 32},
            "l_sel": {"min": 20},
            "tokens": {"multiple_of": 128},
            "w": {"max": 3},
            "equal": [["l", "d"], ["d", "l_sel"], ["d_k", "d_v"]],
        }
        found = sizes.smallest(limits)
        self.assertEqual((found["l"], found["d"], found["l_sel"]), (32, 32, 32))
        self.assertEqual((found["d_k"], found["d_v"], found["heads_per_group"]), (64, 64, 16))
        self.assertEqual((found["tokens"], found["w"], found["n_sel"]), (128, 1, 3))

    def test_unlimited_sizes_show_every_case(self):
        found = sizes.smallest({})
        self.assertGreaterEqual(found["tokens"], 4 * found["l_sel"])
        self.assertNotEqual(found["tokens"] % found["l_sel"], 0)
