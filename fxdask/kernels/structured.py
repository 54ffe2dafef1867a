"""Structured weights: products of Hadamard matrices and random signs, so that fast transforms project the samples.

Blocks of p nodes share the weights ``W_b = H D_1 H D_2 H D_3 / p`` on their first ``n_features`` columns, where
H is the Hadamard matrix of +-1, p = :func:`fxdask.sizes.transform_length`, and the signs of D_1, D_2 and D_3
depend on the seed and the block alone. W is never formed; single rows come from transforming unit vectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.hadamard import fill_columns, transform_three_times
from fxdask.kernels.projection import ProjectedPart
from fxdask.sizes import columns_per_transform, transform_length

__all__ = ["SCHEME", "StructuredNodes", "structured_rows"]

SCHEME = (
    "hadamard-float32, H D1 H D2 H D3 / p, p = max(256, power of two >= n), "
    "signs of PCG64, SeedSequence(seed, spawn_key=(node // p, i))"
)


@dataclass(frozen=True)
class _Factors:
    """(p,) factors of one block of nodes: random signs, with 1 / p shared between the first two.

    Halves of the power of two keep all intermediate values as far from overflow as the results; they change no digit.
    """

    first: NDArray[np.float32]
    second: NDArray[np.float32]
    third: NDArray[np.float32]


@lru_cache(maxsize=2)  # single rows of a block are made a few at a time
def _drawn(seed: int, block: int, length: int) -> _Factors:
    """The factors of a block of this length."""
    bits = length.bit_length() - 1
    first, second, third = (_signs(seed, block, i, length) for i in (1, 2, 3))
    return _Factors(first * np.float32(2.0 ** -(bits // 2)), second * np.float32(2.0 ** (bits // 2 - bits)), third)


def _signs(seed: int, block: int, which: int, length: int) -> NDArray[np.float32]:
    """(length,) random +1 and -1."""
    stream = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(block, which)))
    drawn = np.unpackbits(np.frombuffer(np.random.Generator(stream).bytes(length // 8), np.uint8))
    return np.float32(1) - 2 * drawn.astype(np.float32)


class StructuredNodes:
    """Nodes in rising order, any samples -> (node, sample) values; a sample's values do not depend on the others."""

    def __init__(self, seed: int, nodes: Sequence[int] | NDArray[np.integer], n_features: int) -> None:
        nodes, length = np.asarray(nodes, np.int64), transform_length(n_features)
        self._blocks = [
            (_drawn(seed, block, length), where, _as_slice(nodes[where] % length))
            for block, where in _by_block(nodes, length)
        ]
        self._buffer = np.empty(length * columns_per_transform(length), np.float32)
        self._length, self.n_rows = length, len(nodes)
        self.nodes = slice(None)

    def parts(self, samples: NDArray[np.float32]) -> Iterator[ProjectedPart]:
        """(sample, feature) preprocessed samples -> nodes, samples, (node, sample) values of these."""
        per_transform = columns_per_transform(self._length)
        for start in range(0, len(samples), per_transform):
            some = samples[start : start + per_transform]
            rows = self._buffer[: self._length * len(some)].reshape(self._length, len(some))
            for factors, where, wanted in self._blocks:
                fill_columns(some, factors.third, rows)
                transform_three_times(rows, factors.second, factors.first)
                yield where, slice(start, start + len(some)), rows[wanted]


def structured_rows(seed: int, nodes: Sequence[int] | NDArray[np.integer], n_features: int) -> NDArray[np.float32]:
    """Seed and any nodes, in any order -> (node, feature) weights, by transforming unit vectors."""
    nodes, length = np.asarray(nodes, np.int64), transform_length(n_features)
    order = np.argsort(nodes, kind="stable")
    weights = np.empty((len(nodes), n_features), np.float32)
    for block, where in _by_block(nodes[order], length):
        factors = _drawn(seed, block, length)
        wanted = order[where]
        for start in range(0, len(wanted), columns_per_transform(length)):
            some = wanted[start : start + columns_per_transform(length)]
            rows = np.zeros((length, len(some)), np.float32)
            rows[nodes[some] % length, np.arange(len(some))] = 1
            transform_three_times(rows, factors.first, factors.second)
            weights[some] = (rows[:n_features] * factors.third[:n_features, None]).T
    return weights


def _by_block(nodes: NDArray[np.integer], length: int) -> Iterator[tuple[int, slice]]:
    """Nodes in rising order -> each block that has some of them, and where they are."""
    blocks, first = np.unique(nodes // length, return_index=True)
    edges = [*first.tolist(), len(nodes)]
    for i, block in enumerate(blocks.tolist()):
        yield block, slice(edges[i], edges[i + 1])


def _as_slice(rows: NDArray[np.integer]) -> slice | NDArray[np.integer]:
    """Consecutive rows as a slice, which copies faster; others unchanged."""
    first, last = int(rows[0]), int(rows[-1]) + 1
    return slice(first, last) if last - first == len(rows) else rows
