"""Buffers that a thread reuses."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = ["Scratch"]


class Scratch:
    """Buffers for the large arrays of one thread, reused from one call to the next.

    The system has to map and clear new memory, which takes about as long as filling it. A Dask
    worker returns freed memory at once, so without reuse every large array there needs new memory.
    """

    def __init__(self) -> None:
        self._arrays: dict[str, NDArray[np.uint8]] = {}

    def __call__(self, name: str, shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> NDArray[Any]:
        """An uninitialised array of this shape, in the same memory as the previous array of this name."""
        n_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        if name not in self._arrays or len(self._arrays[name]) < n_bytes:
            self._arrays[name] = np.empty(n_bytes, np.uint8)
        return self._arrays[name][:n_bytes].view(dtype).reshape(shape)
