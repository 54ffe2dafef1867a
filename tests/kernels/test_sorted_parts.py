"""Columns in parts of rising values: the same values, and the same bits of what is computed from them."""

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from kernels.criteria.columns import labelled_columns, measure

from fxdask.errors import MemoryPlanError
from fxdask.kernels.criteria import density_overlap
from fxdask.kernels.criteria.base import Measurements
from fxdask.kernels.criteria.density_overlap import DENSITY_OVERLAP
from fxdask.kernels.criteria.mutual_information import MUTUAL_INFORMATION
from fxdask.kernels.digit_counts import OrderStatistic
from fxdask.kernels.moments import class_moments
from fxdask.kernels.order_statistics import SortedRows
from fxdask.kernels.projection import ColumnValues
from fxdask.kernels.sorted_parts import CutColumn, PartedColumns, cut_positions
from fxdask.kernels.statistics import spread_with_fallback


def parted(columns, whole):
    """Columns in parts, with what is known of them besides."""
    counts, sorted_columns = whole.columns.counts, whole.columns
    spread, middle = np.zeros(counts.shape), np.zeros(counts.shape)
    for k, column in np.argwhere(counts).tolist():
        own = sorted_columns.of_class(k, column)
        middle[k, column] = own[len(own) // 2]
        spread[k, column] = spread_with_fallback(SortedRows(own[None]), "mad", whole.tolerance[k, [column]])[0][0]
    ranges = np.stack([whole.moments.lowest, whole.moments.highest]).astype(np.float64)
    n_samples = np.diff(sorted_columns.edges)
    return PartedColumns(columns=columns, n_samples=n_samples, spread=spread, middle=middle, ranges=ranges)


def cut_column(column, codes, index, per_part, per_read):
    """(sample,) values and codes -> the column in parts, which reads so many samples at a time."""
    n_classes, present = int(codes.max()) + 1, np.sort(column[~np.isnan(column)])
    counts = np.bincount(codes[~np.isnan(column)], minlength=n_classes)
    cuts = [
        OrderStatistic(value, int(np.sum(present < value)), int(np.sum(present <= value)))
        for value in present[cut_positions(len(present), per_part)]
    ]
    order = np.argsort(codes, kind="stable")
    edges = np.searchsorted(codes[order], np.arange(n_classes + 1))
    runs = [[slice(*edges[k : k + 2])] for k in range(n_classes)]
    plain = class_moments(ColumnValues(column[None, order], runs))
    absolute = class_moments(ColumnValues(np.abs(column[None, order]), runs))
    totals = (plain.sums[:, 0].tolist(), plain.squares[:, 0].tolist(), absolute.sums[:, 0].tolist())

    def read():
        for start in range(0, len(column), per_read):
            yield column[start : start + per_read], codes[start : start + per_read]

    return CutColumn(index, counts, cuts, per_part, totals, read)


@given(
    drawn=labelled_columns(max_samples=80),
    share=st.sampled_from([0.0, 0.3]),
    per_part=st.integers(1, 40),
    per_read=st.integers(1, 90),
)
def test_parts_hold_every_value_once_in_rising_order(drawn, share, per_part, per_read):
    values, codes = drawn
    values[np.random.default_rng(0).random(values.shape) < share] = np.nan
    expected = measure(values, codes).columns
    for index, column in enumerate(values):
        cut = cut_column(column, codes, index, per_part, per_read)
        found, highest = [[] for _ in cut.counts], -np.inf
        for part in range(cut.n_parts):
            low, high = cut.bounds(part)
            for piece in cut.pieces(part):
                assert sum(map(len, piece.classes)) <= 2 * per_part
                for k, own in enumerate(piece.classes):
                    assert piece.first[k] == len(found[k]) or not len(own)
                    assert highest <= low <= min(own, default=low)
                    assert max(own, default=high) <= high
                    found[k] += own.tolist()
            highest = max((own[-1] for own in found if own), default=highest)
        assert found == [expected.of_class(k, index).tolist() for k in range(len(cut.counts))]


@given(
    drawn=labelled_columns(max_samples=80),
    share=st.sampled_from([0.0, 0.3]),
    per_part=st.integers(7, 40),
    per_read=st.integers(30, 90),
)
@settings(max_examples=20)
def test_scores_of_parts_have_the_bits_of_whole_columns(drawn, share, per_part, per_read):
    values, codes = drawn
    values[np.random.default_rng(0).random(values.shape) < share] = np.nan
    whole = measure(values, codes, seed=3)
    parts = [cut_column(column, codes, index, per_part, per_read) for index, column in enumerate(values)]
    cut = Measurements(priors=whole.priors, tolerance=whole.tolerance, parts=parted(parts, whole), seed=3)
    assert MUTUAL_INFORMATION.score(cut).tobytes() == MUTUAL_INFORMATION.score(whole).tobytes()
    try:
        of_parts = DENSITY_OVERLAP.score(cut)
    except MemoryPlanError:  # values that are 10^15 bandwidths apart, which need too many cells
        reject()
    assert of_parts.tobytes() == DENSITY_OVERLAP.score(whole).tobytes()


def test_values_closer_than_the_noise_are_reordered_across_parts():
    """Half of the values differ by far less than the noise, and many are equal, so that all parts wait together."""
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 3, 3_000)
    near = rng.standard_normal(3_000) * np.where(rng.random(3_000) < 0.7, 1e-12, 1.0)
    values = np.where(rng.random((2, 3_000)) < 0.4, [[0.0], [7.0]], near).astype(np.float32)
    whole = measure(values, codes)
    for per_part in (100, 999):
        parts = [cut_column(column, codes, index, per_part, 700) for index, column in enumerate(values)]
        cut = Measurements(priors=whole.priors, tolerance=whole.tolerance, parts=parted(parts, whole))
        assert MUTUAL_INFORMATION.score(cut).tobytes() == MUTUAL_INFORMATION.score(whole).tobytes()


def test_densities_of_far_values_have_the_bits_of_whole_columns():
    """A few values are thousands of bandwidths away, so that they are added one by one, in cells of their own."""
    rng = np.random.default_rng(4)
    codes = rng.integers(0, 2, 2_000)
    values = np.stack([rng.standard_cauchy(2_000) * (1 + codes), rng.standard_normal(2_000)]).astype(np.float32)
    values[0, :3] = [-1e6, 1e7, 3e7]
    whole = measure(values, codes)
    parts = [cut_column(column, codes, index, 300, 700) for index, column in enumerate(values)]
    cut = Measurements(priors=whole.priors, tolerance=whole.tolerance, parts=parted(parts, whole))
    assert DENSITY_OVERLAP.score(cut).tobytes() == DENSITY_OVERLAP.score(whole).tobytes()


def test_densities_of_too_many_cells_are_refused(monkeypatch):
    monkeypatch.setattr(density_overlap, "BYTES_PER_AREA", 2**14)
    codes = np.arange(400) % 2
    values = np.random.default_rng(0).standard_cauchy((1, 400)).astype(np.float32)
    whole = measure(values, codes)
    cut = Measurements(
        priors=whole.priors,
        tolerance=whole.tolerance,
        parts=parted([cut_column(values[0], codes, 0, 50, 100)], whole),
    )
    with pytest.raises(MemoryPlanError, match="^density_overlap needs .* cells or more for feature 0, .* but 102 fit"):
        DENSITY_OVERLAP.score(cut)
