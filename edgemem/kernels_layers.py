"""The steps between a transformer's matrix products, forward and backward: which version answers.

Knows arrays only. As in edgemem/kernels.py, whose module it uses: the native version where there
is one, NumPy's (edgemem/kernels_layers_numpy.py) otherwise.

All arrays are C-contiguous float32; what is called an output is written, nothing is returned.
Every function lets other threads run and raises ValueError on a wrong shape or dtype. Cost: a few
passes over the arguments.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgemem import kernels_layers_numpy

__all__ = [
    "EVERY_KEY",
    "GELU",
    "SILU",
    "gated",
    "gated_backward",
    "rms_norm",
    "rms_norm_backward",
    "softmax_backward",
    "softmax_causal",
]

SILU, GELU = kernels_layers_numpy.SILU, kernels_layers_numpy.GELU
EVERY_KEY = 2**31 - 1
"""A window that holds all keys."""

from edgemem.kernels_layers_numpy import *  # noqa
