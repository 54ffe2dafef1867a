"""Joint selections whose candidates are ranked by ReliefF: against the oracle, and the same bits in every layout."""

import dask
import dask.array as da
import numpy as np
import oracles
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import fxdask
from fxdask import FisherNetworkClassifier
from fxdask.errors import MemoryPlanError
from fxdask.kernels.criteria import relief
from fxdask.planning.fit_plan import FitPlan
from fxdask.planning.fit_search import plan_fit
from fxdask.planning.fit_size import FitSize
from fxdask.planning.machine import Resources
from fxdask.planning.pool_plan import plan_pool_relief
from fxdask.sizes import MIB
from fxdask.workflows import pool_relief

N_NODES, POOL_SIZE = 40, 8


def fit(X, y, **parameters):
    options = {"selection": "joint", "criterion": "relief", "pool_size": POOL_SIZE, "normalize": None, **parameters}
    return FisherNetworkClassifier(N_NODES, 3, **options).fit(X, y)


@pytest.fixture(scope="module")
def data():
    """Three classes of unequal size that overlap, in five features."""
    rng = np.random.default_rng(3)
    y = rng.choice(3, 60, p=[0.5, 0.3, 0.2])
    X = rng.standard_normal((60, 5)) @ rng.standard_normal((5, 5)) * (1 + y[:, None]) + y[:, None]
    return X.astype(np.float32), y


@pytest.fixture(scope="module")
def reference(data):
    return fit(*data)


@pytest.mark.parametrize("n_anchors", [1_000, 20])
def test_the_selection_equals_the_oracle(data, n_anchors, monkeypatch):
    X, y = data
    monkeypatch.setattr(pool_relief, "N_ANCHORS", n_anchors)
    found = fit(X, y)
    by_divergence = fit(X, y, criterion="extended_fisher")
    assert np.array_equal(found.divergences_, by_divergence.divergences_)
    best = [oracles.top_nodes(scores, POOL_SIZE) for scores in found.divergences_.tolist()]
    pool = sorted({node for of_class in best for node in of_class})
    z = found.weights(np.array(pool)).astype(np.float64) @ (X - X.mean(axis=0)).T.astype(np.float64)
    anchors = relief.spread_anchors(y, 3, n_anchors).tolist()
    weights = oracles.relief(z.T, y, anchors, found.priors_.tolist())
    order = sorted(range(len(pool)), key=lambda node: (-weights[node], node))
    own = [z[:, y == k] for k in range(3)]
    counts = [values.shape[1] for values in own]
    location = np.array([[oracles.interquartile_mean(row) for row in values] for values in own])
    spread = np.array([[oracles._mad64(row) for row in values] for values in own])
    spread = np.array([oracles.shrunk_spreads(of_node, counts) for of_node in spread.T]).T
    correlations = [oracles.shrunk_correlations(values)[0] for values in own]
    chosen, overlaps = oracles.joint_selection(location, spread, correlations, counts, found.priors_, 9, order)
    assert found.selected_nodes_.tolist() == [[pool[candidate] for candidate in chosen]]
    assert found.selected_nodes_.tolist() != by_divergence.selected_nodes_.tolist()
    np.testing.assert_allclose(found.overlaps_, overlaps, rtol=1e-4)


@settings(max_examples=settings.default.max_examples // 5)
@given(
    rows_per_task=st.integers(7, 60),
    threads=st.integers(1, 4),
    chunk=st.integers(7, 60),
    form=st.sampled_from(["numpy", "dask", "zarr"]),
    in_store=st.booleans(),
)
def test_no_layout_changes_a_bit(data, reference, tmp_path_factory, rows_per_task, threads, chunk, form, in_store):
    X, y = data
    folder = tmp_path_factory.mktemp("layout")
    samples = X
    if form == "dask":
        samples = da.from_array(X, chunks=(chunk, 3))
    elif form == "zarr":
        samples = zarr.create_array(folder / "X.zarr", data=X, chunks=(chunk, 5))
    with pytest.MonkeyPatch.context() as patch, dask.config.set(num_workers=threads):
        patch.setattr(FitPlan, "samples_per_projection", lambda *_: rows_per_task)
        found = fit(samples, y, store=folder / "model.zarr" if in_store else None)
    for one in [found, fxdask.load(folder / "model.zarr")] if in_store else [found]:
        assert np.array_equal(one.selected_nodes_, reference.selected_nodes_)
        assert np.array_equal(one.overlaps_, reference.overlaps_)
        assert np.array_equal(one.decision_function(X), reference.decision_function(X))
    assert found.criterion == "relief"


def test_candidates_that_do_not_fit_are_refused_with_both_numbers():
    size = FitSize(n_nodes=20_000, n_features=50, class_counts=(50_000, 50_000), n_selected=10)
    resources = Resources(limit=500 * MIB, baseline=100 * MIB, threads=1, with_caller=True)
    plan = plan_fit(size, resources=resources)
    assert plan_pool_relief(plan, 100, 1_000, 10).anchors_per_task == 1_000
    with pytest.raises(MemoryPlanError, match="20,000 columns needs .* but this process may use .*; reduce pool_size"):
        plan_pool_relief(plan, 20_000, 1_000, 10)
