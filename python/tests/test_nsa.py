"""The Python package, all of it. Run it as a program, or by unittest; `nsa` must be importable.

What needs a GPU is skipped without one, what takes long unless NSA_PYTHON_LONG is set; both say so.
"""

import sys
import unittest
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
warnings.filterwarnings("ignore", message="Failed to initialize NumPy")

from cases_kernels import *  # noqa: E402,F401,F403
from cases_model import *  # noqa: E402,F401,F403
from cases_names import *  # noqa: E402,F401,F403
from cases_numbers import *  # noqa: E402,F401,F403
from cases_operators import *  # noqa: E402,F401,F403
from cases_refusals import *  # noqa: E402,F401,F403
from cases_traced import *  # noqa: E402,F401,F403
from cases_training import *  # noqa: E402,F401,F403

if __name__ == "__main__":
    unittest.main()
