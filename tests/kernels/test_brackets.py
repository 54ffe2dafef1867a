import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fxdask.kernels.brackets import bracket, bracket_all, probe_indices
from fxdask.kernels.order_statistics import SortedRows
from fxdask.kernels.statistics import LOCATIONS, SPREADS, bracketed_statistics, spread_with_fallback
from fxdask.kernels.streamed_rows import StreamedRows

any_float = st.floats(-(2.0**60), 2.0**60, width=32).map(np.float32)
few_values = st.sampled_from([-1.0, -0.0, 0.0, 1e-45, -1e-45, 0.5, 3.0]).map(np.float32)


def streamed(values, brackets, cuts=(), *, moments=False):
    """(row, value) values -> bracketed rows, after streaming the values in pieces."""
    bounds = np.abs(values).max(axis=1).astype(float)
    stream = StreamedRows(brackets, values.shape[1], trimmed_sums=True, moments=moments, bounds=bounds)
    for part in np.split(values, cuts, axis=1):
        if part.shape[1]:
            stream.absorb(slice(0, len(values)), np.sort(part, axis=1))
    return stream.settle()


def assert_equal_where_not_missed(values, ordered, *, moments):
    """Assert equal statistics, to the last bit, in all rows that are not marked as missed; return these marks."""
    whole = SortedRows(np.sort(values, axis=1))
    tolerance = np.zeros(len(values))
    for location in LOCATIONS:
        for spread in SPREADS:
            found = bracketed_statistics([ordered], tolerance[None], location, spread)
            got, missed = found.statistics, found.missed | found.without_moments
            answered = ~missed
            if location == "mean" and not moments:
                assert (np.isnan(got.location[0]) | missed | (got.location[0] == LOCATIONS[location](whole))).all()
                continue
            sigma, source = spread_with_fallback(whole, spread, tolerance)
            assert got.location[0, answered].tobytes() == LOCATIONS[location](whole)[answered].tobytes()
            assert got.spread[0, answered].tobytes() == sigma[answered].tobytes()
            assert (got.source[0, answered] == source[answered]).all()
    return ordered.stream.missed


@given(
    values=st.one_of(
        arrays(np.float32, st.tuples(st.integers(1, 3), st.integers(4, 60)), elements=any_float),
        arrays(np.float32, st.tuples(st.integers(1, 3), st.integers(4, 60)), elements=few_values),
    ),
    slack=st.sampled_from([0.0, 0.3, 1.0, 5.0]),
    moments=st.booleans(),
    data=st.data(),
)
def test_statistics_equal_those_of_all_values_or_are_marked_as_missed(values, slack, moments, data):
    """Values have ties, zeros of both signs and denormals; some brackets are so narrow that many rows miss."""
    count = values.shape[1]
    probed = sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=2)))
    cuts = sorted(data.draw(st.lists(st.integers(0, count), max_size=3)))
    probes = np.sort(values[:, probed], axis=1)
    ordered = streamed(values, bracket(probes, count, slack), cuts, moments=moments)
    assert_equal_where_not_missed(values, ordered, moments=moments)


@given(
    values=arrays(np.float32, st.tuples(st.integers(1, 3), st.integers(2, 40)), elements=any_float),
    cuts=st.lists(st.integers(0, 40), max_size=3).map(sorted),
)
def test_a_bracket_around_all_values_never_misses(values, cuts):
    ordered = streamed(values, bracket_all(*values.shape), np.minimum(cuts, values.shape[1]), moments=True)
    assert not assert_equal_where_not_missed(values, ordered, moments=True).any()


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        pytest.param(
            kind, count, marks=[pytest.mark.full] if count == 10**6 and kind in ("skewed", "two clusters") else []
        )
        for kind in ("normal", "skewed", "ties", "two clusters", "mostly zero")
        for count in (10, 100, 1_000, 10_000, 100_000, 1_000_000)
    ],
)
def test_statistics_of_ten_to_a_million_samples(count, kind):
    rng = np.random.default_rng(count)
    values = {
        "normal": lambda: rng.standard_normal((2, count)),
        "skewed": lambda: rng.exponential(size=(2, count)),
        "ties": lambda: rng.integers(-4, 5, (2, count)),
        "two clusters": lambda: rng.standard_normal((2, count)) * 1e-3 + rng.integers(0, 2, (2, count)),
        "mostly zero": lambda: rng.standard_normal((2, count)) * (rng.random((2, count)) < 0.2),
    }[kind]().astype(np.float32)
    probes = min(count, 4_096)
    chosen = probe_indices(np.zeros(count, np.uint8), [probes])
    brackets = bracket(np.sort(values[:, chosen], axis=1), count, 5.0)
    ordered = streamed(values, brackets, range(0, count, max(1, count // 7)), moments=True)
    missed = assert_equal_where_not_missed(values, ordered, moments=True)
    # Each cluster has half of the values, so probes cannot show in which of them the median is.
    assert not missed.any() or kind == "two clusters"
    quantiles = np.quantile(values[0], [0.25, 0.5], method="lower")
    assert missed[0] or ordered.at((count - 1) // 4)[0] == quantiles[0]
    assert missed[0] or ordered.at((count - 1) // 2)[0] == quantiles[1]
    if count == 1_000_000 and kind in ("normal", "ties", "mostly zero"):
        assert brackets.room < 0.35 * count


def test_values_shared_by_many_samples_are_not_kept():
    values = np.zeros((1, 100_000), np.float32)
    values[0, ::5] = np.linspace(-1, 1, 20_000)
    probes = np.sort(values[:, ::37], axis=1)
    brackets = bracket(probes, values.shape[1], 5.0)
    assert brackets.room < 1_000
    assert not assert_equal_where_not_missed(values, streamed(values, brackets, moments=True), moments=True).any()


def test_a_bracket_without_its_quantile_is_marked_as_missed():
    values = np.arange(1000, dtype=np.float32)[None]
    low_half = np.sort(values[:, :300:3], axis=1)
    ordered = streamed(values, bracket(low_half, 1000, 0.1))
    assert np.isnan(LOCATIONS["interquartile_mean"](ordered)).all()
    assert ordered.stream.missed.tolist() == [True]


def test_a_full_buffer_is_marked_as_missed():
    values = np.random.default_rng(0).standard_normal((1, 1000)).astype(np.float32)
    brackets = bracket(np.sort(values[:, ::5], axis=1), 1000, 5.0)
    assert not streamed(values, brackets).stream.missed.any()
    cramped = streamed(values, replace(brackets, room=100))
    assert cramped.stream.missed.all()
    assert np.isnan(LOCATIONS["interquartile_mean"](cramped)).all()


@given(
    codes=st.lists(st.integers(0, 2), min_size=6, max_size=200).filter(lambda c: {0, 1, 2} <= set(c)), data=st.data()
)
def test_probes_are_spread_over_every_class(codes, data):
    codes = np.array(codes)
    sizes = np.bincount(codes)
    counts = [data.draw(st.integers(1, int(size))) for size in sizes]
    chosen = probe_indices(codes, counts)
    assert (np.diff(chosen) > 0).all()
    assert np.bincount(codes[chosen], minlength=3).tolist() == counts
    for k, (size, count) in enumerate(zip(sizes, counts, strict=True)):
        positions = np.searchsorted(np.flatnonzero(codes == k), chosen[codes[chosen] == k])
        gaps = np.diff(np.concatenate([[-1], positions, [size]]))
        assert gaps.max() <= 2 * math.ceil(size / count)
