"""The host's modules and the adapters, loaded into the tests' own process."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from client import HOST

PACKAGE = "nsa_adapter_host"


def load(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"loaded_{file.stem}", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if PACKAGE not in sys.modules:
    spec = importlib.util.spec_from_file_location(
        PACKAGE, HOST.parent / "__init__.py", submodule_search_locations=[str(HOST.parent)]
    )
    sys.modules[PACKAGE] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[PACKAGE])

from nsa_adapter_host import adapter, check, description, device_arena, errors, sizes  # noqa: E402, F401
