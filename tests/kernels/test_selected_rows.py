import tracemalloc

import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fxdask.kernels import selected_rows
from fxdask.kernels.order_statistics import SortedRows
from fxdask.kernels.projection import ClassValues, ColumnValues
from fxdask.kernels.scratch import Scratch
from fxdask.kernels.selected_rows import SELECTED_LENGTHS, SelectedRows
from fxdask.kernels.statistics import LOCATIONS, SPREADS, class_statistics, selected_statistics, spread_with_fallback

KINDS = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "offset": lambda rng, shape: 1e4 + rng.standard_normal(shape),
    "heavy tails": lambda rng, shape: rng.standard_cauchy(shape) ** 3,
    "many magnitudes": lambda rng, shape: np.exp(rng.uniform(-80, 80, shape)) * rng.choice([-1, 1], shape),
    "equal values": lambda rng, shape: rng.integers(-3, 4, shape) / 8,
    "mostly zero": lambda rng, shape: rng.standard_normal(shape) * (rng.random(shape) < 0.3),
    "constant": lambda rng, shape: np.full(shape, -0.7),
    "zeros of both signs": lambda rng, shape: rng.choice([-0.0, 0.0], shape),
    "sorted": lambda rng, shape: np.sort(rng.standard_normal(shape), axis=1),
    "periodic": lambda rng, shape: np.resize(rng.standard_normal(10), shape),
    "largest": lambda rng, shape: rng.uniform(-3e38, 3e38, shape),
    "smallest": lambda rng, shape: rng.integers(-9, 9, shape) * 1.5e-45,
}


def rows_of(kind, seed, n_rows, count):
    return KINDS[kind](np.random.default_rng(seed), (n_rows, count)).astype(np.float32)


@given(
    kind=st.sampled_from(sorted(KINDS)),
    seed=st.integers(0, 99),
    n_rows=st.integers(1, 4),
    count=st.integers(4, 3_000),
    share=st.floats(0, 1, exclude_max=True),
)
def test_selected_rows_equal_sorted_rows(kind, seed, n_rows, count, share):
    values = rows_of(kind, seed, n_rows, count)
    got, want = SelectedRows(values), SortedRows(np.sort(values, axis=1))
    for position in (int(share * count), count // 2, count // 2 - 1, 0, count - 1):
        assert np.array_equal(got.at(position), want.at(position))
    for trimmed in (count // 4, 1, 0):
        assert np.array_equal(got.total(trimmed), want.total(trimmed))
    # Distances of the largest values overflow.
    centre = want.at(count // 2) if kind != "largest" else np.zeros(n_rows, np.float32)
    assert np.array_equal(got.median_distance(centre), want.median_distance(centre))
    few = np.array([n_rows - 1])
    assert got.take(few).moments() == want.take(few).moments()


@pytest.mark.parametrize("kind", ["normal", "mostly zero", "heavy tails"])
def test_selected_rows_equal_the_oracle(kind):
    (values,) = rows_of(kind, 5, 1, 1_025)
    got = SelectedRows(values[None])
    assert LOCATIONS["interquartile_mean"](got)[0] == oracles.LOCATION["interquartile_mean"](values)
    assert spread_with_fallback(got, "mad", np.zeros(1))[0] == oracles.spread(values, "mad", 0.0)[0]


def test_few_rows_of_usual_values_are_sorted(monkeypatch):
    """Rows whose brackets stay wide are sorted, which is slow: it must stay the exception."""
    values, sorted_rows = rows_of("normal", 0, 200, 6_000), []
    whole = np.sort

    def counted(array, axis):
        sorted_rows.extend([len(array)] if array.shape[1] == values.shape[1] else [])
        return whole(array, axis=axis)

    monkeypatch.setattr(selected_rows.np, "sort", counted)
    rows = SelectedRows(values)
    rows.total(1_500)
    rows.median_distance(rows.at(3_000))
    assert sum(sorted_rows) <= 2


@pytest.mark.parametrize("location", sorted(LOCATIONS))
@pytest.mark.parametrize("spread", sorted(SPREADS))
def test_statistics_by_selection_have_the_same_bits(location, spread):
    """The classes have several runs of columns; one class is too short to be selected."""
    rng = np.random.default_rng(3)
    values = np.concatenate([rng.standard_normal((30, 1_500)), np.ones((30, 1_700))], axis=1).astype(np.float32)
    runs = [[slice(0, 900), slice(1_000, 1_400)], [slice(900, 1_000)], [slice(1_400, 3_200)]]
    assert [sum(run.stop - run.start for run in of_class) in SELECTED_LENGTHS for of_class in runs] == [
        True,
        False,
        True,
    ]
    columns, tolerance = ColumnValues(values, runs), np.full((3, 30), 1e-7)
    classes = ClassValues([columns.gather(k) for k in range(3)])
    want = class_statistics(columns, tolerance, location, spread)
    got = selected_statistics(classes, tolerance, location, spread, Scratch())
    for name in ("location", "spread", "source"):
        assert np.array_equal(getattr(got, name), getattr(want, name)), name


def test_rows_of_mostly_equal_values_need_little_memory():
    """Their spreads fall back to other estimators, which copy the values of these rows: only some rows at a time."""
    values = rows_of("normal", 0, 600, 12_000)
    values[:, :7_500] = 0.25
    tolerance = np.full((1, 600), 1e-6)

    def measure():
        return selected_statistics(ClassValues([values]), tolerance, "interquartile_mean", "mad", Scratch())

    found = measure()
    want = class_statistics(ClassValues([values]), tolerance)
    assert np.array_equal(found.spread, want.spread)
    assert set(found.source.ravel()) != {0}
    tracemalloc.start()
    measure()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < values.nbytes / 2
