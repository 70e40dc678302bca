"""The adapter: a Python file of somebody else's, what it says of itself, and its functions."""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import Any, Callable

from . import description, errors
from .errors import Failure

MODULE = "nsa_adapter"


class Adapter:
    """A loaded adapter. What it says is checked when somebody asks for a function of it."""

    def __init__(self, path: str):
        self.file = os.path.abspath(path)
        self._module = _load(self.file)
        self.description = self._describe()
        self.mistakes = description.mistakes(self.description, self._defined, self.where("describe"))

    def where(self, name: str) -> str:
        """FILE:LINE of one of its functions, under its decorators. It may have come from another file."""
        code = getattr(inspect.unwrap(self._defined(name)), "__code__", None)
        return f"{code.co_filename}:{code.co_firstlineno}" if code else f"{self.file}:1"

    def call(self, name: str, *arguments: Any, **keywords: Any) -> Any:
        """Calls one of its functions. Whatever it raises, leaving the process included, is its failure."""
        return self.guard(self._defined(name), *arguments, **keywords)

    def guard(self, function: Callable, *arguments: Any, **keywords: Any) -> Any:
        """Calls something that may run the adapter's code, as autograd does."""
        try:
            return function(*arguments, **keywords)
        except BaseException as error:
            if errors.is_interrupt(error):
                raise
            raise errors.raised_in_call(error, self.file) from None

    def require_sound(self) -> None:
        """Nothing is computed for an adapter that contradicts itself."""
        if self.mistakes:
            raise Failure("description", "\n".join(str(mistake) for mistake in self.mistakes))

    def _defined(self, name: str) -> Any:
        return getattr(self._module, name, None)

    def _describe(self) -> dict:
        describe = self._defined("describe")
        if not callable(describe):
            raise Failure("description", f"{self.file}:1: describe(): every adapter defines it")
        try:
            return describe()
        except BaseException as error:
            if errors.is_interrupt(error):
                raise
            raise errors.raised(error, "description", self.file) from None


def _load(file: str) -> ModuleType:
    """Its folder is not put on sys.path: an adapter called fla.py would then import itself instead of fla."""
    loader = SourceFileLoader(MODULE, file)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(MODULE, loader))
    sys.modules[MODULE] = module
    try:
        loader.exec_module(module)
    except BaseException as error:  # a library may call exit() when it misses something
        if errors.is_interrupt(error):
            raise
        raise errors.raised(error, "import", file) from None
    return module
