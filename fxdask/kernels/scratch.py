"""Arrays that are used again."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = ["Scratch"]


class Scratch:
    """Room for a thread's large arrays, kept from one use to the next.

    Fresh memory has to be mapped and cleared by the system, which takes about as long as filling
    it; a Dask worker gives freed memory back at once, so there every large array is fresh.
    """

    def __init__(self) -> None:
        self._arrays: dict[str, NDArray[np.uint8]] = {}

    def __call__(self, name: str, shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> NDArray[Any]:
        """An array of this shape, with anything in it; it shares its memory with the last one of this name."""
        n_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        if name not in self._arrays or len(self._arrays[name]) < n_bytes:
            self._arrays[name] = np.empty(n_bytes, np.uint8)
        return self._arrays[name][:n_bytes].view(dtype).reshape(shape)
