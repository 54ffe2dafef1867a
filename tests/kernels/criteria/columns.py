"""Columns for the tests of criteria: with ties, duplicates, constants and missing values, split in any way."""

import numpy as np
from hypothesis import strategies as st

from fxdask.kernels.criteria.base import Measurements
from fxdask.kernels.moments import class_moments, merge_moments
from fxdask.kernels.projection import ColumnValues
from fxdask.kernels.sorted_columns import SortedColumns, sort_columns


@st.composite
def labelled_columns(draw, max_classes=4, max_samples=40, max_columns=4):
    """(column, sample) float32 values, (sample,) class codes; every class has at least two samples."""
    n_classes = draw(st.integers(2, max_classes))
    n = draw(st.integers(2 * n_classes, max_samples))
    rng = np.random.default_rng(draw(st.integers(0, 9999)))
    codes = rng.permutation(np.concatenate([np.repeat(np.arange(n_classes), 2), rng.integers(0, n_classes, n)])[:n])
    kinds = st.sampled_from(["normal", "wide", "whole", "halves", "constant", "separated", "tiny", "zeros"])
    values = np.array([column_of(draw(kinds), codes, rng) for _ in range(draw(st.integers(1, max_columns)))])
    return values.astype(np.float32), codes


def column_of(kind, codes, rng):
    """(sample,) values of one kind."""
    normal = rng.standard_normal(len(codes))
    return {
        "normal": normal + codes,
        "wide": normal * (1 + codes) * 10.0 ** rng.integers(-20, 20),
        "whole": np.round(2 * normal) - 0.0,
        "halves": np.where(rng.random(len(codes)) < 0.7, 1.5, normal + codes),
        "constant": np.full(len(codes), 2.5),
        "separated": codes * 3.0,
        "tiny": normal * rng.choice([1e-44, 1e-30, 1.0], len(codes)),
        "zeros": np.where(rng.random(len(codes)) < 0.5, 0.0, -0.0),
    }[kind]


def grouped(values, codes, n_classes, per_tile=None):
    """(column, sample) values, (sample,) codes -> values ordered by class within tiles, with the runs of each class."""
    tiles, runs = [], [[] for _ in range(n_classes)]
    for start in range(0, len(codes), per_tile or len(codes)):
        some = np.arange(start, min(len(codes), start + (per_tile or len(codes))))
        order = some[np.argsort(codes[some], kind="stable")]
        for k in range(n_classes):
            first, last = np.searchsorted(codes[order], [k, k + 1])
            if last > first:
                runs[k].append(slice(start + int(first), start + int(last)))
        tiles.append(values[:, order])
    return ColumnValues(np.ascontiguousarray(np.concatenate(tiles, axis=1)), runs)


def measure(values, codes, *, seed=0, per_tile=None, chunk=None, tolerance=0.0):
    """Measurements of all columns; ``per_tile`` and ``chunk`` split the samples, which must not change a score."""
    n_classes = int(codes.max()) + 1
    chunk = chunk or len(codes)
    parts = [
        class_moments(grouped(values[:, start : start + chunk], codes[start : start + chunk], n_classes, per_tile))
        for start in range(0, len(codes), chunk)
    ]
    return Measurements(
        priors=np.bincount(codes) / len(codes),
        tolerance=np.full((n_classes, len(values)), tolerance),
        moments=merge_moments(parts),
        columns=sort_columns(grouped(values, codes, n_classes, per_tile), np.arange(len(values))),
        seed=seed,
    )


def column_part(measured, columns):
    """The measurements of some columns."""
    whole = measured.columns
    some = SortedColumns(whole.values[columns], whole.edges, whole.counts[:, columns], whole.indices[columns])
    return Measurements(
        priors=measured.priors, tolerance=measured.tolerance[:, columns], columns=some, seed=measured.seed
    )


def by_class(column, codes):
    """(sample,) values, NaN left out -> list of the values of each class."""
    return [[float(v) for v in column[codes == k] if not np.isnan(v)] for k in range(int(codes.max()) + 1)]
