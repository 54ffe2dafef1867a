"""Fast Hadamard transforms of many columns at once; the additions of a column have one fixed order."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["fill_columns", "transform_three_times"]

FLOATS_PER_CHUNK = 2**17  # half of a usual second-level cache
WITH_FACTORS = 3  # the code of a pass over four rows that transforms, multiplies and transforms again
SHORTEST = 32
FLOATS_PER_LINE = 16  # of the CPU cache


class _Passes(NamedTuple):
    """Passes over rows: each joins rows that are ``stride`` apart."""

    strides: NDArray[np.intp]
    radices: NDArray[np.intp]


class _Steps(NamedTuple):
    """The passes of three transforms: over all rows, then over each chunk, then over all, then over each chunk."""

    before: _Passes
    first: _Passes
    between: _Passes
    second: _Passes


def fill_columns(samples: NDArray[np.float32], factors: NDArray[np.float32], rows: NDArray[np.float32]) -> None:
    """(sample, feature), (row,) factors -> (row, sample) rows: the features times their factors, then zeros."""
    fill, _ = _compiled()
    fill(samples, factors, rows)


def transform_three_times(rows: NDArray[np.float32], first: NDArray[np.float32], second: NDArray[np.float32]) -> None:
    """(row, column) values, (row,) factors -> ``H second H first H rows`` in place, H the Hadamard matrix of +-1.

    There are a power of two of rows, at least 32. The order of the additions depends on the number of
    rows alone, so a column has the same bits beside any other columns.
    """
    _, run = _compiled()
    n_rows, width = rows.shape
    per_chunk = min(n_rows, 2 ** max(4, (FLOATS_PER_CHUNK // width).bit_length() - 1))
    steps, flat = _steps(n_rows, per_chunk), rows.reshape(-1)
    run(flat, width, *steps.before, first)
    for start in range(0, n_rows, per_chunk):
        chunk = slice(start * width, (start + per_chunk) * width)
        run(flat[chunk], width, *steps.first, first[start : start + per_chunk])
    run(flat, width, *steps.between, second)
    for start in range(0, n_rows, per_chunk):
        run(flat[start * width : (start + per_chunk) * width], width, *steps.second, second)


@cache
def _steps(n_rows: int, per_chunk: int) -> _Steps:
    """The transforms commute with each other, so the first ends and the second begins where rows are neighbours."""
    bits = n_rows.bit_length() - 1
    assert n_rows == 2**bits >= SHORTEST, f"{n_rows} rows are no power of two from {SHORTEST} on"
    middle = [(2**bit, 2 ** min(2, bits - 2 - bit)) for bit in range(2, bits - 2, 2)]
    inner = [(stride, radix) for stride, radix in middle if stride * radix <= per_chunk]
    outer, high = middle[len(inner) :], n_rows // 4
    return _Steps(
        before=_passes([(high, 4), *outer[::-1]]),
        first=_passes([*inner[::-1], (1, WITH_FACTORS), *inner]),
        between=_passes([*outer, (high, WITH_FACTORS), *outer[::-1]]),
        second=_passes([*inner[::-1], (1, 4)]),
    )


def _passes(listed: list[tuple[int, int]]) -> _Passes:
    return _Passes(*(np.array(part, np.intp) for part in zip(*listed, strict=True)))


def _fill(samples: NDArray[np.float32], factors: NDArray[np.float32], rows: NDArray[np.float32]) -> None:
    n_features = samples.shape[1]
    n_whole = n_features // FLOATS_PER_LINE * FLOATS_PER_LINE
    # One cache line of each sample at a time, because neighbours in a column may be megabytes apart. The compiler
    # unrolls a loop of known length, which then takes less than half of the time.
    for first in range(0, n_whole, FLOATS_PER_LINE):
        some_factors = factors[first : first + FLOATS_PER_LINE]
        for sample in range(len(samples)):
            values = samples[sample, first : first + FLOATS_PER_LINE]
            for feature in range(FLOATS_PER_LINE):
                rows[first + feature, sample] = some_factors[feature] * values[feature]
    for feature in range(n_whole, n_features):
        for sample in range(len(samples)):
            rows[feature, sample] = factors[feature] * samples[sample, feature]
    rows[n_features:] = 0


def _run(
    values: NDArray[np.float32],
    width: int,
    strides: NDArray[np.intp],
    radices: NDArray[np.intp],
    factors: NDArray[np.float32],
) -> None:
    """(row x column,) values -> the same after all passes; loops over slices become vector instructions."""
    for step in range(len(strides)):
        stride, radix = strides[step], radices[step]
        run = stride * width
        if radix == WITH_FACTORS:
            for group in range(0, len(values) // width, 4 * stride):
                for row in range(group, group + stride):
                    start = row * width
                    x0 = values[start : start + width]
                    x1 = values[start + run : start + run + width]
                    x2 = values[start + 2 * run : start + 2 * run + width]
                    x3 = values[start + 3 * run : start + 3 * run + width]
                    f0, f1 = factors[row], factors[row + stride]
                    f2, f3 = factors[row + 2 * stride], factors[row + 3 * stride]
                    for i in range(width):
                        a, b, c, d = x0[i] + x1[i], x0[i] - x1[i], x2[i] + x3[i], x2[i] - x3[i]
                        a, b, c, d = f0 * (a + c), f1 * (b + d), f2 * (a - c), f3 * (b - d)
                        a, b, c, d = a + b, a - b, c + d, c - d
                        x0[i], x1[i], x2[i], x3[i] = a + c, b + d, a - c, b - d
        elif radix == 4:
            for start in range(0, len(values), 4 * run):
                x0 = values[start : start + run]
                x1 = values[start + run : start + 2 * run]
                x2 = values[start + 2 * run : start + 3 * run]
                x3 = values[start + 3 * run : start + 4 * run]
                for i in range(run):
                    a, b, c, d = x0[i] + x1[i], x0[i] - x1[i], x2[i] + x3[i], x2[i] - x3[i]
                    x0[i], x1[i], x2[i], x3[i] = a + c, b + d, a - c, b - d
        else:
            for start in range(0, len(values), 2 * run):
                x0 = values[start : start + run]
                x1 = values[start + run : start + 2 * run]
                for i in range(run):
                    x0[i], x1[i] = x0[i] + x1[i], x0[i] - x1[i]


@cache
def _compiled() -> tuple[Callable[..., None], Callable[..., None]]:
    """:func:`_fill` and :func:`_run` compiled to machine code on first use."""
    njit = import_module("numba").njit(nogil=True, cache=True)
    return njit(_fill), njit(_run)
