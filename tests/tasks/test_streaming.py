"""Fits whose projections do not fit into memory give the same numbers as fits whose projections do."""

from functools import partial

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from small import unfinish

import fxdask
from fxdask import FisherNetworkClassifier
from fxdask.errors import InvalidInputError, MemoryPlanError
from fxdask.execution import fit as fit_graphs
from fxdask.kernels.brackets import probe_indices
from fxdask.kernels.preprocessing import origin_quartiles, preprocessing_from, summarize
from fxdask.kernels.statistics import class_statistics
from fxdask.planning import fit_search
from fxdask.planning.fit_plan import FitPlan
from fxdask.tasks import streaming
from fxdask.tasks.columns import ProjectedNodes
from fxdask.tasks.job import FitJob
from fxdask.tasks.streaming import streamed_statistics
from fxdask.tasks.telemetry import TaskCounters, resident_bytes

MIB = 2**20
N_NODES = 400

# The rule that learns least, because streaming ends when the nodes are selected.
network = partial(FisherNetworkClassifier, combine="sum")


@pytest.fixture(scope="module")
def many():
    """So many samples that the values of a block of nodes do not fit into some hundred MiB."""
    rng = np.random.default_rng(3)
    y = (rng.random(60_000) < 0.35).astype(int)
    X = rng.standard_normal((60_000, 5)).astype(np.float32)
    X[y == 1] *= [1.5, 0.7, 1.0, 1.2, 1.0]
    return X, y


def tight(megabytes_per_task=45):
    """The memory limit that leaves this much for each of two tasks."""
    return int((resident_bytes() + 2 * megabytes_per_task * MIB) / 0.6)


@pytest.fixture(scope="module")
def whole(many):
    return network(N_NODES, 5).fit(*many)


@pytest.fixture(autouse=True)
def two_threads():
    with dask.config.set(num_workers=2):
        yield


def assert_same(model, whole):
    assert model.divergences_.tobytes() == whole.divergences_.tobytes()
    assert np.array_equal(model.selected_nodes_, whole.selected_nodes_)
    assert model.spread_sources_ == whole.spread_sources_


def test_a_streamed_fit_gives_the_same_model(many, whole):
    clf = network(N_NODES, 5, memory_limit=tight())
    plan = clf.plan(*many)
    assert plan.is_streamed
    assert plan.task_bytes <= plan.resources.per_task
    assert not network(N_NODES, 5).plan(*many).is_streamed
    assert_same(clf.fit(*many), whole)
    assert clf.fit_info_["plan"]["values_held"] == "of a chunk of samples"


@pytest.mark.parametrize("kind", ["npy", "zarr"])
def test_a_streamed_fit_reads_as_many_bytes_as_planned(many, whole, tmp_path, kind):
    X, y = many
    if kind == "npy":
        np.save(tmp_path / "X.npy", X)
    else:
        zarr.create_array(tmp_path / "X.zarr", data=X, chunks=(7_000, 3))
    clf = network(N_NODES, 5, memory_limit=tight(), store=tmp_path / "model.zarr")
    plan = clf.plan(tmp_path / f"X.{kind}", y)
    assert plan.is_streamed
    assert_same(clf.fit(tmp_path / f"X.{kind}", y), whole)
    assert sum(clf.fit_info_["bytes_read_by_process"].values()) == plan.bytes_read
    assert clf.fit_info_["passes"] == plan.passes
    names = set(zarr.open_group(tmp_path / "model.zarr", mode="r").array_keys())
    assert "probes" not in names, "temporary arrays are deleted"
    assert_same(fxdask.load(tmp_path / "model.zarr"), whole)


def test_an_unfinished_fit_can_be_resumed_with_less_memory(many, whole, tmp_path):
    store = tmp_path / "model.zarr"
    first = network(N_NODES, 5, store=store, nodes_per_block=150).fit(*many)
    unfinish(store)
    (store / "blocks_done" / "c" / "1").unlink()
    clf = network(N_NODES, 5, store=store, memory_limit=tight(25))
    plan = clf.plan(*many)
    assert plan.is_streamed
    assert plan.nodes_per_block == 150
    clf.fit(*many)
    assert clf.fit_info_["n_blocks_resumed"] == 2
    assert_same(clf, whole)
    assert first.store_ == clf.store_


@pytest.mark.parametrize(
    ("location", "spread", "normalize"),
    [("mean", "std", None), ("median", "iqr", "feature"), ("interquartile_mean", "std", "sample")],
)
def test_all_estimators_can_be_streamed(many, location, spread, normalize):
    parameters = {"location": location, "spread": spread, "normalize": normalize}
    clf = network(100, 5, memory_limit=tight(25), **parameters)
    assert clf.plan(*many).is_streamed
    assert_same(clf.fit(*many), network(100, 5, **parameters).fit(*many))


def test_zero_spreads_fall_back_and_their_rows_are_repeated(many):
    X, y = many
    X = X.copy()
    X[np.random.default_rng(0).random(len(X)) < 0.8] = 0
    clf = network(50, 5, memory_limit=tight(20))
    assert clf.plan(X, y).is_streamed
    clf.fit(X, y)
    assert clf.fit_info_["rows_repeated"] == 50
    assert clf.spread_sources_["std"] == 100
    assert_same(clf, network(50, 5).fit(X, y))


def test_sorted_samples_need_no_repeats(many):
    """Probes are spread over all samples, so a drift from the first sample to the last does no harm."""
    X, y = many
    order = np.argsort(X[:, 0])
    X, y = X[order], y[order]
    clf = network(50, 5, memory_limit=tight(20)).fit(X, y)
    assert clf.fit_info_["plan"]["values_held"] == "of a chunk of samples"
    assert clf.fit_info_["rows_repeated"] == 0
    assert_same(clf, network(50, 5).fit(X, y))


@pytest.mark.parametrize("ties", [False, True])
def test_values_inside_brackets_are_counted_if_they_do_not_fit(many, whole, tmp_path, monkeypatch, ties):
    X, y = many
    if ties:
        X = np.rint(X)
    np.save(tmp_path / "X.npy", X)
    monkeypatch.setattr(fit_search, "WAYS", (True,))
    clf = network(100, 5, memory_limit=tight(64), store=tmp_path / "model.zarr")
    plan = clf.plan(tmp_path / "X.npy", y)
    assert plan.is_counted
    assert "counted, then kept" in str(plan)
    assert max(plan.kept_counts) < min(plan.class_counts) / 2
    assert_same(clf.fit(tmp_path / "X.npy", y), network(100, 5).fit(X, y))
    assert sum(clf.fit_info_["bytes_read_by_process"].values()) == plan.bytes_read
    assert clf.fit_info_["passes"] == plan.passes == 2 * plan.n_blocks * plan.passes_per_block
    assert clf.fit_info_["rows_repeated"] == 0


def test_many_classes_are_streamed_without_brackets_and_give_the_same_model(many):
    X, y = many[0], np.arange(len(many[0])) % 50
    X = X + (y % 7)[:, None] * X.std()
    clf = network(N_NODES, 1, memory_limit=tight(40))
    plan = clf.plan(X, y)
    assert plan.is_streamed
    assert plan.kept_counts == plan.class_counts
    assert_same(clf.fit(X, y), network(N_NODES, 1).fit(X, y))
    assert clf.fit_info_["passes"] == plan.passes


def test_too_little_memory_is_refused_with_both_numbers(many):
    with pytest.raises(
        MemoryPlanError,
        match=r"a task needs [\d.]+ MiB at least but may use [\d.]+ (B|KiB|MiB): 0.6 of the limit of .* for 2 tasks at",
    ):
        network(N_NODES, 5, memory_limit=resident_bytes()).fit(*many)


def test_keeping_all_projections_is_refused_if_values_must_be_streamed(many, tmp_path):
    clf = network(N_NODES, 5, memory_limit=tight(), store=tmp_path / "model.zarr", keep_projections="all")
    with pytest.raises(MemoryPlanError, match=r'keep_projections="all" needs .* but a task may use'):
        clf.fit(*many)
    assert not (tmp_path / "model.zarr").exists()


@given(
    seed=st.integers(0, 999),
    n_samples=st.integers(40, 3_000),
    n_classes=st.integers(2, 4),
    chunk_tiles=st.integers(1, 3),
    per_pass=st.integers(1, 40),
    start=st.integers(0, 30),
    slacks=st.sampled_from([(5.0, 20.0, None), (0.2, 1.0, None), (0.0, None), (None,)]),
    estimators=st.sampled_from([("interquartile_mean", "mad"), ("median", "iqr"), ("mean", "std")]),
    ties=st.booleans(),
    n_features=st.sampled_from([3, 70]),
    kept=st.sampled_from(["in brackets", "all", "all of some classes", "counted", "counted, but for small classes"]),
)
def test_streamed_statistics_equal_those_in_memory_bit_by_bit(
    seed, n_samples, n_classes, chunk_tiles, per_pass, start, slacks, estimators, ties, n_features, kept
):
    """Some slacks are too small on purpose, so that brackets miss and rows are repeated."""
    rng = np.random.default_rng(seed)
    shape = (n_samples, n_features)
    X = (rng.integers(-2, 3, shape) if ties else rng.standard_normal(shape)).astype(np.float32)
    codes = np.concatenate([np.repeat(np.arange(n_classes), 2), rng.integers(0, n_classes, n_samples - 2 * n_classes)])
    counts = tuple(map(int, np.bincount(codes)))
    location, spread = estimators
    n_nodes = start + 40
    plan = FitPlan(
        n_nodes=n_nodes,
        n_features=n_features,
        class_counts=counts,
        n_selected=1,
        nodes_per_block=40,
        nodes_per_pass=per_pass,
        samples_per_chunk=chunk_tiles * 768,
        is_counted=kept.startswith("counted"),
    )
    chosen = probe_indices(codes, [min(count, max(2, count // 3)) for count in counts])
    preprocessing = preprocessing_from(summarize(X, None), origin_quartiles(X, None), None, X.dtype)
    priors = np.full(n_classes, 1 / n_classes)
    job = FitJob(
        plan=plan,
        seed=0,
        preprocessing=preprocessing,
        codes=codes,
        priors=priors,
        class_norms=rng.uniform(0, 4, n_classes),
        criterion="fisher",
        location=location,
        spread=spread,
        shrink_spread=False,
        probe_codes=codes[chosen],
    )
    block = plan.block(1) if start else plan.block(0)
    counters = TaskCounters()
    kept_counts = {
        "in brackets": tuple(count - 1 for count in counts),
        "all": counts,
        "all of some classes": tuple(count - k % 2 for k, count in enumerate(counts)),
        "counted": tuple(min(count - 1, 6) for count in counts),
        "counted, but for small classes": tuple(min(count, 100) for count in counts),
    }[kept]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FitPlan, "kept_counts", property(lambda _: kept_counts))
        patch.setattr(streaming, "BINS_PER_BRACKET", 64)
        got = streamed_statistics(job, ProjectedNodes(job, X, block, counters, X[chosen]), counters, slacks)
    columns = ProjectedNodes(job, X, block, TaskCounters())
    want = class_statistics(columns.all_values(), columns.tolerance, location, spread)
    assert got.location.tobytes() == want.location.tobytes()
    assert got.spread.tobytes() == want.spread.tobytes()
    assert np.array_equal(got.source, want.source)
    assert counters.rows_repeated <= block.n_nodes * (len(slacks) - 1)


def test_a_model_larger_than_the_limit_is_refused(many):
    with pytest.raises(MemoryPlanError, match=r"the fitted model itself needs [\d.]+ MiB but this process may use"):
        network(N_NODES, 200, memory_limit=tight(20)).plan(*many)


def test_many_selected_nodes_are_projected_in_ranges_of_bounded_size(many):
    X, y = (part[:25_000] for part in many)
    clf = network(N_NODES, 200).fit(X, y)
    plan = clf.plan(X, y)
    assert plan.samples_per_projection(400) * 400 * 4 <= 16 * MIB
    assert plan.samples_per_projection(400) < len(X) / 2, "there are several ranges"
    assert plan.samples_per_projection(400) % plan.tile.samples == 0
    weights = clf.weights(clf.network_.nodes).astype(float)
    exact = weights @ (X - X.mean(axis=0, dtype=float)).T
    ascending = np.concatenate([np.sort(exact[:, y == k], axis=1) for k in clf.classes_], axis=1)
    np.testing.assert_allclose(clf.network_.projections, ascending, atol=1e-4)


def test_a_file_that_became_shorter_after_the_scan_is_refused_and_no_store_remains(many, tmp_path, monkeypatch):
    X, y = many
    np.save(tmp_path / "X.npy", X)

    def truncate_then_fit(*arguments):
        np.save(tmp_path / "X.npy", X[:50_000])
        return fit_blocks(*arguments)

    fit_blocks = fit_graphs.fit_blocks
    monkeypatch.setattr(fit_graphs, "fit_blocks", truncate_then_fit)
    with pytest.raises(InvalidInputError, match="X has changed since it was scanned"):
        network(50, 5, store=tmp_path / "model.zarr").fit(tmp_path / "X.npy", y)
    assert not (tmp_path / "model.zarr").exists()


def test_the_plan_of_a_dask_array_counts_its_loaded_samples(many):
    X, y = np.tile(many[0], (1, 20)), many[1]  # much larger than other changes of the memory in use
    lazy = da.from_array(X, chunks=(10_000, 100))
    clf = network(50, 5, memory_limit=tight(450))
    assert clf.plan(lazy, y).resources.baseline > clf.plan(X, y).resources.baseline + X.nbytes / 2
    assert_same(clf.fit(lazy, y), network(50, 5).fit(X, y))
