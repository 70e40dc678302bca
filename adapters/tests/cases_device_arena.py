"""The memory of a GPU that the client shares, over memory of the CPU: how tensors lie in it, and what is refused."""

from __future__ import annotations

import unittest
from unittest import mock

import torch
from client import DTYPES, same_bits
from package import device_arena, errors

GPU = "07" * 16


def memory(name: int, size: int, gpu: str = GPU) -> dict:
    return {"handle": f"{name:02x}" * 64, "size": size, "gpu": gpu}


class FakeDriver:
    """Its memory is told apart by the first byte of its handle; the handle 255 opens nothing."""

    def __init__(self):
        self.opened: dict[int, torch.Tensor] = {}
        self.waits = 0

    def gpu(self) -> str:
        return GPU

    def open(self, handle: bytes, size: int) -> torch.Tensor:
        if handle[0] == 255:
            raise device_arena.Unshared("cuIpcOpenMemHandle_v2: CUDA_ERROR_INVALID_VALUE")
        tensor = self.opened[handle[0]] = torch.zeros(size, dtype=torch.uint8)
        return tensor

    def close(self, pointer: int) -> None:
        self.opened = {name: tensor for name, tensor in self.opened.items() if tensor.data_ptr() != pointer}

    def wait(self) -> None:
        self.waits += 1


class Opened(unittest.TestCase):
    def setUp(self):
        self.driver = FakeDriver()
        self.arena = device_arena.DeviceArena(lambda: self.driver)

    def test_tensors_of_every_type_come_back_as_they_went(self):
        self.assertEqual(self.arena.open(memory(1, 1 << 16)), "")
        for dtype in DTYPES.values():
            for tensor in (torch.arange(30).reshape(2, 3, 5).to(dtype), torch.zeros(1, 0, 4).to(dtype)):
                strided = tensor.transpose(0, 2)
                wires = self.arena.write({"none": None, "one": tensor, "other": strided}, 256)
                self.assertEqual(list(wires), ["one", "other"])
                self.assertTrue(all(wire["in"] == "cuda" and wire["at"] % 256 == 0 for wire in wires.values()))
                self.assertTrue(same_bits(self.arena.read("one", wires["one"]), tensor))
                self.assertTrue(same_bits(self.arena.read("other", wires["other"]), strided.contiguous()))

    def test_what_is_read_is_a_copy(self):
        self.arena.open(memory(1, 1024))
        wire = self.arena.write({"x": torch.ones(4)}, 0)["x"]
        read = self.arena.read("x", wire)
        self.driver.opened[1].zero_()
        self.assertEqual(read.tolist(), [1, 1, 1, 1])

    def test_both_ways_are_waited_for(self):
        self.arena.open(memory(1, 1024))
        wires = self.arena.write({"x": torch.ones(4), "y": torch.ones(4)}, 0)
        self.assertEqual(self.driver.waits, 1)
        self.arena.read("x", wires["x"])
        self.assertEqual(self.driver.waits, 2)

    def test_what_does_not_fit_is_left_to_the_other_arena(self):
        self.arena.open(memory(1, 1024))
        ones = {name: torch.ones(count) for name, count in (("a", 64), ("b", 300), ("c", 128), ("d", 1), ("e", 0))}
        wires = self.arena.write(ones, 256)
        self.assertEqual({name: wire["at"] for name, wire in wires.items()}, {"a": 256, "c": 512, "e": 1024})
        self.assertEqual(self.arena.write(ones, 1 << 40), {})

    def test_larger_memory_takes_the_place_of_the_old(self):
        self.arena.open(memory(1, 1024))
        self.assertEqual(self.arena.open(memory(2, 4096)), "")
        self.assertEqual((list(self.driver.opened), self.arena.size), ([2], 4096))

    def test_nothing_is_open_after_a_refusal(self):
        for wrong in (memory(255, 4096), memory(2, 4096, gpu="00" * 16)):
            self.arena.open(memory(1, 1024))
            self.assertTrue(self.arena.open(wrong))
            self.assertEqual((self.driver.opened, self.arena.size), ({}, 0))
            self.assertEqual(self.arena.write({"x": torch.ones(4)}, 0), {})

    def test_reasons(self):
        self.assertEqual(self.arena.open(memory(255, 64)), "cuIpcOpenMemHandle_v2: CUDA_ERROR_INVALID_VALUE")
        self.assertIn(f"here calls go to {GPU}", self.arena.open(memory(1, 64, gpu="00" * 16)))

    def test_places_outside_are_refused(self):
        place = {"dtype": "fp32", "shape": [4], "at": 0, "in": "cuda"}
        with self.assertRaisesRegex(errors.Failure, "no memory of a GPU is shared"):
            self.arena.read("x", place)
        self.arena.open(memory(1, 1024))
        for part in ({"at": 64}, {"at": -256}, {"at": 1024}, {"shape": [257]}, {"shape": [1 << 62]}, {"in": "tpu"}):
            with self.subTest(part=part), self.assertRaises(errors.Failure) as caught:
                self.arena.read("x", {**place, **part})
            self.assertEqual(caught.exception.kind, "request")


class Started(unittest.TestCase):
    """What a driver needs."""

    def refusal(self) -> str:
        return device_arena.DeviceArena().open(memory(1, 1024))

    def test_no_gpu(self):
        with mock.patch.object(torch.cuda, "is_available", lambda: False):
            self.assertEqual(self.refusal(), "this torch sees no GPU here")

    def test_no_driver(self):
        there = mock.patch.object(torch.cuda, "is_available", lambda: True)
        context = mock.patch.object(torch, "zeros")
        with there, context, mock.patch.object(device_arena.Driver, "LIBRARY", "libnosuch.so.1"):
            self.assertIn("libnosuch.so.1: cannot open shared object file", self.refusal())

    def test_a_gpu_that_cannot_be_used(self):
        busy = RuntimeError("CUDA error: all CUDA-capable devices are busy\nmore lines")
        with mock.patch.object(torch.cuda, "is_available", lambda: True):
            with mock.patch.object(torch, "zeros", side_effect=busy):
                self.assertEqual(self.refusal(), "CUDA error: all CUDA-capable devices are busy")

    def test_a_handle_of_nobody(self):
        if not torch.cuda.is_available():
            self.skipTest("no GPU: nothing can be opened")
        driver = device_arena.Driver()
        self.assertIn("cuIpcOpenMemHandle_v2: CUDA_ERROR", self.refusal_of(memory(0, 1024, gpu=driver.gpu())))
        self.assertEqual(torch.ones(3, device="cuda").sum().item(), 3)  # the GPU goes on

    @staticmethod
    def refusal_of(wrong: dict) -> str:
        return device_arena.DeviceArena().open(wrong)
