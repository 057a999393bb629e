"""A text as an array of code points.

Knows Unicode's spaces; knows no words and no tokens.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["code_points", "is_space"]

_SPACES = np.array([chr(code).isspace() for code in range(0x3002)])  # 0x3000 is the last one


def code_points(text: str) -> NDArray[np.uint32]:
    """(n,) of the n characters of a text; a half of a surrogate pair is itself."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")


def is_space(codes: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """(n,) which code points are spaces, as `str.isspace` and a pattern's \\s have it."""
    spaces: NDArray[np.bool_] = _SPACES[np.minimum(codes, len(_SPACES) - 1)]
    return spaces
