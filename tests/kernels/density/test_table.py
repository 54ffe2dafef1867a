"""Tables of densities: their errors against exact sums, and against the error bounds of the tables."""

import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fxdask.kernels.density import cells, grid_sums
from fxdask.kernels.density import table as density_table
from fxdask.kernels.density.cells import LARGEST_ERROR, Density
from fxdask.kernels.density.exact import log_density, log_density_nearby
from fxdask.kernels.density.lookup import Lookup
from fxdask.kernels.density.table import DensityTable
from fxdask.kernels.density.tails import TAIL_ERROR, Tail
from fxdask.kernels.scratch import Scratch

ROUNDING = 1e-14

KINDS = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "uniform": lambda rng, n: rng.uniform(size=n),
    "heavy tails": lambda rng, n: rng.standard_cauchy(n),
    "clusters": lambda rng, n: rng.standard_normal(n) + rng.choice([0, 8, 300], n),
    "repeated": lambda rng, n: rng.integers(0, 9, n) * 1.0,
    "one far away": lambda rng, n: np.append(rng.standard_normal(n - 1), 1e4),
    "constant": lambda rng, n: np.full(n, 3.0),
    "offset": lambda rng, n: 1e6 + rng.standard_normal(n) * 100,
}


def drawn(kind, n, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    values = np.sort((scale * KINDS[kind](rng, n)).astype(np.float32))
    spread = np.subtract(*np.percentile(values, [75, 25])) / 1.349
    return values, float((4 / 3 / n) ** 0.2 * (spread or 0.1 * scale))


def points_around(values, bandwidth, seed=0, n=60):
    """(point,) at samples, near samples, between samples, in both tails, and far away."""
    rng = np.random.default_rng(seed)
    steps = bandwidth * np.geomspace(1e-3, 1e9, n)
    low, high = float(values[0]), float(values[-1])
    kinds = [
        rng.choice(values, n),
        rng.choice(values, n) + bandwidth * rng.standard_normal(n),
        rng.uniform(low - 9 * bandwidth, high + 9 * bandwidth, n),
        high + steps,
        low - steps,
    ]
    return np.concatenate(kinds).astype(np.float32)


def look_up(table, points):
    found = Lookup([table])(points[None], Scratch())
    return found.logs[0], found.n_summed


@pytest.mark.parametrize("kind", KINDS)
@given(
    n=st.integers(1, 40) | st.just(300),
    seed=st.integers(0, 10**6),
    narrower=st.sampled_from([1.0, 0.1, 3.0]),
    scale=st.sampled_from([1.0, 1e-20, 1e20]),
)
def test_errors_against_the_oracle_are_within_the_bound(kind, n, seed, narrower, scale):
    values, bandwidth = drawn(kind, n, seed, scale)
    bandwidth *= narrower
    points = points_around(values, bandwidth, seed, 8)
    table = DensityTable(values, bandwidth)
    got, _ = look_up(table, points)
    want = np.array([oracles.log_density(point, values, bandwidth) for point in points])
    assert table.error <= LARGEST_ERROR
    assert (np.abs(got - want) <= table.error + ROUNDING * np.abs(want)).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [6_000, pytest.param(20_000, marks=pytest.mark.full)])
def test_errors_with_many_samples_are_within_the_bound(kind, n):
    values, bandwidth = drawn(kind, n)
    points = points_around(values, bandwidth, n=200)
    table = DensityTable(values, bandwidth)
    got, n_summed = look_up(table, points)
    want = log_density(points, values, bandwidth)
    assert (np.abs(got - want) <= table.error + ROUNDING * np.abs(want)).all()
    peak = np.exp(want).max()
    assert np.abs(np.exp(got) - np.exp(want)).max() <= LARGEST_ERROR * peak
    assert table.n_bytes <= 2**20 + 2**10
    assert n_summed < len(points)


@pytest.mark.parametrize(("order", "pieces"), [(12, 1), (12, 2), (6, 16), (6, 4)])
def test_bounds_of_coarse_tables_hold_and_are_tight(order, pieces, monkeypatch):
    """A coarse table has errors far above rounding; its bound must cover them, and be less than 1,000 times larger."""
    for module in (cells, grid_sums):
        monkeypatch.setattr(module, "ORDER", order)
    for module in (cells, density_table):
        monkeypatch.setattr(module, "PIECES", pieces)
    monkeypatch.setattr(cells, "CELL_ERROR", np.inf)
    cells._binomials.cache_clear()
    try:
        for kind in ("normal", "repeated", "clusters"):
            values, bandwidth = drawn(kind, 500)
            table = DensityTable(values, bandwidth)
            points = np.linspace(values[0] - 5 * bandwidth, values[-1] + 5 * bandwidth, 20_000, dtype=np.float32)
            error = np.abs(look_up(table, points)[0] - log_density(points, values, bandwidth)).max()
            assert 1e-8 < error <= table.error < 1_000 * error
    finally:
        cells._binomials.cache_clear()


def test_a_table_of_few_cells_keeps_those_with_most_samples(monkeypatch):
    values = np.sort(np.append(np.random.default_rng(0).standard_normal(400), [500, -500])).astype(np.float32)
    monkeypatch.setattr(grid_sums, "MOST_CELLS", 40)
    table = DensityTable(values, 0.3)
    points = np.linspace(-2, 2, 50, dtype=np.float32)
    got, n_summed = look_up(table, points)
    assert n_summed == 0
    far = np.array([500.1, -499.9], np.float32)
    found_far, n_summed = look_up(table, far)
    assert n_summed == 2
    for found, at in ((got, points), (found_far, far)):
        np.testing.assert_allclose(found, log_density(at, values, 0.3), atol=LARGEST_ERROR)


def test_several_tables_at_once_equal_tables_one_by_one():
    densities = [Density(*drawn(kind, n, seed=n)) for kind in KINDS for n in (1, 30, 2_000)]
    for together, density in zip(DensityTable.many(densities), densities, strict=True):
        alone = DensityTable(density.ascending, density.bandwidth)
        np.testing.assert_allclose(together.rows, alone.rows, rtol=1e-12, atol=1e-10)
        assert np.array_equal(together.row_of_piece, alone.row_of_piece)
        assert together.error == pytest.approx(alone.error, rel=1e-9)
    assert DensityTable.many([]) == []


@pytest.mark.parametrize("kind", KINDS)
def test_sums_from_moments_of_bins_equal_direct_sums(kind, monkeypatch):
    values, bandwidth = drawn(kind, 3_000)
    binned = DensityTable(values, bandwidth)
    monkeypatch.setattr(grid_sums, "FEWEST_BINNED", 10**9)
    direct = DensityTable(values, bandwidth)
    np.testing.assert_allclose(binned.rows, direct.rows, rtol=1e-9, atol=1e-9)


def test_points_in_the_tails_are_looked_up():
    """All points lie in a tail, near or far, and none of them is summed."""
    for kind in ("normal", "uniform", "heavy tails", "repeated"):
        values, bandwidth = drawn(kind, 6_000)
        table = DensityTable(values, bandwidth)
        for distance in (10, 1e3, 1e6):
            points = values[-1] + np.float32(distance * bandwidth) * np.linspace(1, 2, 500, dtype=np.float32)
            for shifted in (points, values[0] - (points - values[-1])):
                got, n_summed = look_up(table, shifted)
                want = log_density(shifted, values, bandwidth)
                assert n_summed == 0
                assert (np.abs(got - want) <= table.error + ROUNDING * np.abs(want)).all()


@given(
    behind=st.lists(st.floats(0, 50) | st.floats(0, 1e-6), max_size=30),
    distance=st.floats(4, 1e6) | st.floats(4, 20),
)
def test_errors_of_tails_are_within_the_bound(behind, distance):
    behind = np.sort([0.0, *behind])
    (got,) = Tail(behind, len(behind)).log_sum(np.array([distance]))
    exponents = -0.5 * (distance + behind) ** 2
    want = exponents[0] + np.log(np.exp(exponents - exponents[0]).sum())
    if not np.isnan(got):
        assert abs(got - want) <= TAIL_ERROR + ROUNDING * abs(want)


@given(
    values=st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=30),
    points=st.lists(st.floats(-1e6, 1e6, width=32), max_size=8),
    bandwidth=st.floats(1e-3, 1e3),
)
def test_sums_of_nearby_samples_equal_sums_of_all_samples(values, points, bandwidth):
    values, points = np.sort(np.array(values, np.float32)), np.array(points, np.float32)
    got = log_density_nearby(points, values, bandwidth)
    np.testing.assert_allclose(got, log_density(points, values, bandwidth), rtol=1e-13, atol=1e-12)


def test_lookup_of_several_tables_equals_lookup_of_each():
    tables = [DensityTable(*drawn(kind, 200)) for kind in KINDS]
    points = np.stack([points_around(table.ascending, table.bandwidth) for table in tables])
    together = Lookup(tables)(points, Scratch())
    alone = [look_up(table, row) for table, row in zip(tables, points, strict=True)]
    assert np.array_equal(together.logs, [found for found, _ in alone])
    assert together.n_summed == sum(summed for _, summed in alone)


@pytest.mark.parametrize("n_points", [1, 700])
def test_the_total_of_several_tables_has_the_bits_of_a_sum_row_by_row(n_points):
    tables = [DensityTable(*drawn(kind, 200)) for kind in KINDS]
    points = np.stack([points_around(table.ascending, table.bandwidth) for table in tables])[::-1, :n_points]
    rows = np.arange(len(tables))[::-1].copy()
    each = Lookup(tables)(points, Scratch(), rows)
    together = Lookup(tables).totals(points, Scratch(), rows)
    assert np.array_equal(together.logs[0], sum(each.logs, np.zeros(points.shape[1])))
    assert together.n_summed == each.n_summed
    assert n_points == 1 or each.n_summed > 0, "some points have no cell"
