"""Rankings of features that do not fit into a task's memory: the bits of a ranking in memory, from several passes."""

import tracemalloc

import numpy as np
import pandas as pd
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.criteria.columns import labelled_columns

import fxdask
from fxdask import sizes
from fxdask.errors import InvalidInputError, MemoryPlanError
from fxdask.planning import rank_plan
from fxdask.sizes import MIB
from fxdask.tasks import counted_block
from fxdask.tasks import rank_counted as tasks
from fxdask.workflows import rank_request as workflow

SORTED = ["mutual_information", "density_overlap"]
COUNTED = ["fisher", "extended_fisher", "pearson", "kolmogorov_smirnov", "volume_of_overlap"]


def no_room_for_columns(patch, n_values=2**18, n_bytes=16 * MIB):
    """No column fits into memory, so that the plan counts: so many values at a time, into tables of these bytes."""
    patch.setattr(rank_plan, "CRITERION_BYTES", 2**40)
    patch.setattr(counted_block, "VALUES_PER_COUNT", n_values)
    patch.setattr(sizes, "BYTES_PER_COUNT", n_bytes)


@pytest.fixture
def counted(monkeypatch):
    no_room_for_columns(monkeypatch)


def assert_same(found, expected):
    assert found.info["plan"]["columns"] in ("counted in several passes", "counted and sorted in several passes")
    assert expected.info["plan"]["columns"] == "in memory"
    for name in expected.criteria:
        assert found.scores[name].tobytes() == expected.scores[name].tobytes(), name
    for name in expected.p_values:
        assert found.p_values[name].tobytes() == expected.p_values[name].tobytes(), name
    assert np.array_equal(found.missing, expected.missing)


@settings(max_examples=settings.default.max_examples // 3)
@given(
    drawn=labelled_columns(max_samples=60),
    share=st.sampled_from([0.0, 0.2, 0.9]),
    form=st.sampled_from(["numpy", "zarr", "parquet"]),
    kind=st.sampled_from(["float32", "float64", "offset", "int64"]),
    sizes=st.tuples(st.integers(9, 200), st.integers(10**5, 10**7), st.integers(200, 4_000), st.integers(1, 60)),
    measures=st.sampled_from(
        [("interquartile_mean", "mad"), ("mean", "iqr"), ("median", "std"), ("mean", "std"), ("median", "mad")]
    ),
)
def test_counted_scores_have_the_bits_of_sorted_ones(tmp_path_factory, drawn, share, form, kind, sizes, measures):
    values, y = drawn[0].T.copy(), drawn[1]
    if kind == "int64":
        values = np.round(np.clip(values, -1e5, 1e5) * 1e4).astype(np.int64)
    else:
        values = values.astype(np.float64 if kind == "offset" else kind) + (1e9 / 3 if kind == "offset" else 0)
        values[np.random.default_rng(0).random(values.shape) < share] = np.nan
    n_values, n_bytes, per_range, per_chunk = sizes
    options = dict(zip(("location", "spread"), measures, strict=True), missing="omit")
    criteria = COUNTED if n_values % 2 else [*COUNTED[:3], *SORTED]
    expected = fxdask.rank_features(values, y, criteria, **options)
    source = values
    if form == "parquet":
        source = tmp_path_factory.mktemp("counted") / "x.parquet"
        table = pd.DataFrame(values, columns=[f"f{i}" for i in range(values.shape[1])])
        table.to_parquet(source, row_group_size=per_chunk)
    elif form == "zarr":
        source = tmp_path_factory.mktemp("counted") / "x.zarr"
        zarr.create_array(source, data=values, chunks=(min(per_chunk, len(y)), values.shape[1]))
    with pytest.MonkeyPatch.context() as patch:
        no_room_for_columns(patch, n_values, n_bytes)
        patch.setattr(workflow, "SMALL", 0)
        patch.setattr(rank_plan, "BYTES_PER_RANGE", per_range)
        patch.setattr(rank_plan, "FEWEST_FEATURES", 1 + n_values % 3)
        patch.setattr(rank_plan, "MOST_PART_VALUES", 5 + n_values // 4)
        assert_same(fxdask.rank_features(source, y, criteria, **options), expected)


@pytest.fixture(scope="module")
def long_columns():
    """60,000 samples, a class of three; other means, other variances, ties, one value for most samples."""
    rng = np.random.default_rng(2)
    y = np.repeat([0, 1, 2], [40_000, 19_997, 3])[rng.permutation(60_000)]
    X = rng.standard_normal((60_000, 5)).astype(np.float32)
    X[:, 1] += 0.1 * y
    X[:, 2] *= 1 + y
    X[:, 3] = np.round(4 * X[:, 3] + y)
    X[:, 4] = np.where(rng.random(60_000) < 0.9, 1.5, X[:, 4])
    return X, y


def test_long_columns_and_a_class_of_few_samples(long_columns, counted, monkeypatch):
    X, y = long_columns
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank_plan, "CRITERION_BYTES", 40)
        expected = fxdask.rank_features(X, y, [*COUNTED, *SORTED])
    monkeypatch.setattr(rank_plan, "MOST_PART_VALUES", 9_000)
    found = fxdask.rank_features(X, y, [*COUNTED, *SORTED, "relief"], n_anchors=5)
    assert found.info["plan"]["values_per_part"] == 9_000
    assert_same(found, expected)
    assert np.isfinite(found.scores["relief"]).all()
    assert found.curves.shape == (len(found.shown), 4, 240)
    assert found.curves[:, 1:3].sum(axis=2).min() > 0


def test_no_task_uses_more_memory_than_planned(long_columns, counted, monkeypatch, tmp_path):
    X, y, peaks = long_columns[0][:20_000] * np.float64(1.1), long_columns[1][:20_000] % 2, []
    np.save(tmp_path / "x.npy", X)

    def traced(*arguments):
        tracemalloc.start()
        try:
            return tasks.measured_block(*arguments, tasks._counted_results)
        finally:
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()

    monkeypatch.setattr(tasks, "count_block", traced)
    monkeypatch.setattr(workflow, "SMALL", 0)
    plan = fxdask.rank_features(tmp_path / "x.npy", y, COUNTED).info["plan"]
    assert len(peaks) == plan["blocks"]
    assert 16 * MIB < max(peaks) <= plan["bytes_per_block"]


def test_values_that_no_ranking_takes_are_refused(long_columns, counted):
    X, y = long_columns
    for wrong, dtype, message in (
        (np.nan, np.float32, "contains NaN, first in sample 41000, feature 2"),
        (np.inf, np.float64, "contains infinity, first in sample 41000, feature 2"),
        (-np.inf, np.float32, "contains infinity, first in sample 41000, feature 2"),
    ):
        bad = X.astype(dtype)
        bad[[41_000, 52_000], 2] = wrong
        with pytest.raises(InvalidInputError, match=message):
            fxdask.rank_features(bad, y, ["kolmogorov_smirnov"])


def test_sorted_values_need_memory_for_one_part(long_columns, monkeypatch):
    X, y = long_columns
    monkeypatch.setattr(rank_plan, "CRITERION_BYTES", 2**40)
    monkeypatch.setattr(rank_plan, "PART_BYTES", 2**24)
    with pytest.raises(
        MemoryPlanError, match="^sorting values in parts for mutual_information needs .* for one feature, but a task"
    ):
        fxdask.rank_features(X, y, ["fisher", "mutual_information"])


def test_redundancy_is_refused_by_name(long_columns, counted):
    X, y = long_columns
    with pytest.raises(MemoryPlanError, match="^redundancy='mrmr' needs all 60,000 values of a feature in memory"):
        fxdask.FilterSelector("fisher", k=2, redundancy="mrmr").fit(X, y)


def test_a_ranking_goes_on_with_more_memory(long_columns, tmp_path, monkeypatch):
    """The first blocks were counted, the others are sorted; the copies by columns stay."""
    X, y = long_columns[0][:9_000], long_columns[1][:9_000] % 2
    zarr.create_array(tmp_path / "x.zarr", data=X, chunks=(2_000, 5))
    monkeypatch.setattr(workflow, "SMALL", 0)
    monkeypatch.setattr(rank_plan, "FEWEST_FEATURES", 2)
    expected, measured, original = fxdask.rank_features(tmp_path / "x.zarr", y, COUNTED), [], tasks._counted_results

    def interrupted(*arguments):
        measured.append(1)
        if len(measured) == 2:
            raise KeyboardInterrupt
        return original(*arguments)

    with monkeypatch.context() as patch:
        no_room_for_columns(patch)
        patch.setattr(tasks, "_counted_results", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fxdask.rank_features(tmp_path / "x.zarr", y, COUNTED, store=tmp_path / "r.zarr")
    found = fxdask.rank_features(tmp_path / "x.zarr", y, COUNTED, store=tmp_path / "r.zarr")
    assert found.info["n_blocks_resumed"] >= 1
    for name in COUNTED:
        assert found.scores[name].tobytes() == expected.scores[name].tobytes()
