"""Native Sparse Attention: the operators, kernels and layers of nsa-validate for PyTorch (README.md).

    o = nsa.attention(q, k, v, gates)                  # functional.py: attention and its parts
    layer = nsa.NativeSparseAttention(768, n_heads=12)  # module.py
    from nsa.compat.fla import parallel_nsa            # signatures that people already call
    torch.ops.nsa.attend_window                        # the operators themselves
"""

from pathlib import Path

import torch

TORCH = "2.11."


def _load():
    """The operators, or an ImportError that says what this build was made for."""
    if not torch.__version__.startswith(TORCH):
        raise ImportError(f"nsa: torch is {torch.__version__}; allowed: {TORCH}*, which this wheel was built with")
    if torch.version.cuda is None or not torch.version.cuda.startswith("13."):
        raise ImportError(
            f"nsa: torch {torch.__version__} was built with CUDA {torch.version.cuda}; allowed: CUDA 13 "
            "(a GPU is not needed)"
        )
    library = Path(__file__).parent / "_C.so"
    if not library.exists():
        raise ImportError(f"nsa: there is no {library}; the wheel, or CMake with -D NSA_VALIDATE_PYTHON=ON, makes it")
    torch.ops.load_library(str(library))


_load()

from nsa import shapes as _shapes  # noqa: E402,F401  (registers itself)
from nsa.files import load_tensors, save_tensors  # noqa: E402
from nsa.functional import (  # noqa: E402
    Geometry,
    PhiWeights,
    attend,
    attend_compressed,
    attend_selected,
    attend_window,
    attention,
    combine,
    compress,
    select,
)
from nsa.model import LanguageModel, ModelConfig  # noqa: E402
from nsa.module import NativeSparseAttention  # noqa: E402

__version__ = "0.1.0"
__all__ = [
    "Geometry",
    "LanguageModel",
    "ModelConfig",
    "NativeSparseAttention",
    "PhiWeights",
    "attend",
    "attend_compressed",
    "attend_selected",
    "attend_window",
    "attention",
    "combine",
    "compress",
    "load_tensors",
    "save_tensors",
    "select",
]
