"""Models that keep tables instead of training projections give the labels of models that keep these."""

import pickle

import dask
import numpy as np
import pytest
import zarr

import fxdask
from fxdask import FisherNetworkClassifier
from fxdask.errors import InvalidInputError
from fxdask.kernels.density import summed
from fxdask.tasks.reread import TrainingSamples
from fxdask.workflows import plan as planning

# So many samples that the values of two classes are bracketed, and those of the third are not.
COUNTS = (9_000, 7_000, 500)
NETWORK = {"n_nodes": 60, "n_selected": 3, "combine": "sum"}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Three classes in a .npy file, and points to label."""
    rng = np.random.default_rng(5)
    y = rng.permutation(np.repeat(np.arange(3), COUNTS))
    X = rng.standard_normal((len(y), 16)).astype(np.float32)
    X[y == 1] *= np.linspace(0.6, 1.7, 16, dtype=np.float32)
    X[y == 2] += 0.5
    file = tmp_path_factory.mktemp("data") / "X.npy"
    np.save(file, X)
    points = (1.5 * rng.standard_normal((3_000, 16))).astype(np.float32)
    return file, X, y, points


@pytest.fixture
def reads(monkeypatch):
    """How often training samples were read again."""
    calls, original = [], TrainingSamples.__call__
    monkeypatch.setattr(TrainingSamples, "__call__", lambda *args: calls.append(args[1].shape[1]) or original(*args))
    return calls


def scores(clf, points):
    return clf._fitted_model().scorer.log_scores(points).scores


@pytest.mark.parametrize(
    "options",
    [
        {"combine": "sum"},
        {"combine": "log", "projection": "structured", "bandwidth": "scott", "bandwidth_spread": "std"},
        {"combine": "scaled", "location": "mean", "shrink_spread": True, "selection": "joint", "normalize": "sample"},
    ],
    ids=lambda options: options["combine"],
)
def test_the_model_has_the_same_nodes_bandwidths_and_labels(data, tmp_path, options):
    file, _, y, points = data
    kept = FisherNetworkClassifier(**NETWORK | options).fit(file, y)
    clf = FisherNetworkClassifier(**NETWORK | options, keep_projections="table", store=tmp_path / "m.zarr")
    clf.fit(file, y)
    for name in ("nodes", "weights", "bandwidth", "location", "spread", "member"):
        assert getattr(clf.network_, name).tobytes() == getattr(kept.network_, name).tobytes(), name
    assert clf.network_.projections.shape[1] < 4_200 < kept.network_.projections.shape[1]
    assert np.array_equal(clf.predict(points), kept.predict(points))
    assert np.abs(scores(clf, points) - scores(kept, points)).max() < 1e-6
    assert clf.temperature_ == pytest.approx(kept.temperature_, rel=1e-6)
    again = fxdask.load(tmp_path / "m.zarr")
    assert scores(again, points).tobytes() == scores(clf, points).tobytes()
    assert scores(pickle.loads(pickle.dumps(clf)), points).tobytes() == scores(clf, points).tobytes()


@pytest.fixture(scope="module")
def table_model(data, tmp_path_factory):
    file, _, y, _ = data
    store = tmp_path_factory.mktemp("stores") / "model.zarr"
    return FisherNetworkClassifier(**NETWORK, keep_projections="table", store=store).fit(file, y)


def test_a_report_draws_the_densities_of_few_samples(table_model, tmp_path):
    table_model.report(tmp_path / "report.html")
    assert "<svg" in (tmp_path / "report.html").read_text()


def test_tables_do_not_depend_on_the_memory_or_on_the_kind_of_input(data, table_model, tmp_path):
    _, X, y, points = data
    with dask.config.set(num_workers=3):
        clf = FisherNetworkClassifier(**NETWORK, keep_projections="table", nodes_per_block=7)
        clf.fit(zarr.create_array(tmp_path / "X.zarr", data=X, chunks=(1_000, 16)), y)
    assert scores(clf, points).tobytes() == scores(table_model, points).tobytes()


def test_exact_sums_read_the_training_samples_again(data, table_model, reads):
    file, _, y, points = data
    clf = fxdask.load(table_model.store)
    clf.density = "exact"
    kept = FisherNetworkClassifier(**NETWORK, density="exact").fit(file, y)
    assert scores(clf, points[:9]) == pytest.approx(scores(kept, points[:9]), rel=1e-12)
    assert reads == [9]


def test_labels_that_tables_do_not_decide_are_those_of_exact_sums(tmp_path, reads):
    """Every class has the same samples, so that scores are equal, and no table can tell which class is better."""
    rng = np.random.default_rng(0)
    one = rng.standard_normal((300, 5)).astype(np.float32)
    X, y = np.tile(one, (2, 1)), np.repeat([0, 1], 300)
    np.save(tmp_path / "X.npy", X)
    clf = FisherNetworkClassifier(40, 2, combine="sum", keep_projections="table").fit(tmp_path / "X.npy", y)
    kept = FisherNetworkClassifier(40, 2, combine="sum").fit(X, y)
    assert np.array_equal(clf.predict(one[:20]), kept.predict(one[:20]))
    assert reads == [20]
    (tmp_path / "X.npy").unlink()
    np.save(tmp_path / "X.npy", X[::-1])
    with pytest.raises(InvalidInputError, match=r"training samples at .*X.npy have changed since the fit"):
        clf.predict(one[:20])
    in_memory = FisherNetworkClassifier(40, 2, combine="sum", keep_projections="table").fit(X, y)
    with pytest.raises(InvalidInputError, match=r"20 samples are so near .* cannot be read again; fit with keep_proj"):
        in_memory.predict(one[:20])


def test_points_in_wide_gaps_are_summed(monkeypatch, reads, tmp_path):
    """With few outermost values, densities between far groups of samples are not known from tables."""
    monkeypatch.setattr(summed, "MOST_OUTERMOST", 2)
    rng = np.random.default_rng(1)
    X = rng.standard_normal((600, 2)).astype(np.float32)
    X[::2] += 1e4
    y = np.arange(600) % 3 % 2
    np.save(tmp_path / "X.npy", X)
    narrow = {"n_nodes": 20, "n_selected": 2, "combine": "sum", "bandwidth": 0.5}
    clf = FisherNetworkClassifier(**narrow, keep_projections="table").fit(tmp_path / "X.npy", y)
    kept = FisherNetworkClassifier(**narrow).fit(X, y)
    points = np.linspace(0, 1e4, 50, dtype=np.float32)[:, None] * np.ones(2, np.float32)
    assert np.array_equal(clf.predict(points), kept.predict(points))
    assert reads


def test_very_large_projections_are_tabulated_without_being_asked(data, monkeypatch):
    file, X, y, _ = data
    monkeypatch.setattr(planning, "TABLES_ABOVE", 4 * 9 * len(X) - 1)
    assert FisherNetworkClassifier(**NETWORK).plan(file, y).keeps_tables
    assert FisherNetworkClassifier(**NETWORK).fit(file, y).network_.tables
    # An array in memory cannot be read again later, and the joint rule needs all values.
    assert not FisherNetworkClassifier(**NETWORK).plan(X, y).keeps_tables
    assert not FisherNetworkClassifier(**NETWORK | {"combine": "joint"}).plan(file, y).keeps_tables
    monkeypatch.setattr(planning, "TABLES_ABOVE", 4 * 9 * len(X))
    assert not FisherNetworkClassifier(**NETWORK).plan(file, y).keeps_tables


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"combine": "joint"}, r"combine='joint' needs the ranks of all training values; choose one of '"),
        ({"bandwidth": "sheather_jones"}, r"bandwidth='sheather_jones' needs all training values; choose one of "),
    ],
)
def test_what_needs_all_values_is_refused_by_name(data, options, message):
    _, X, y, _ = data
    with pytest.raises(InvalidInputError, match=message):
        FisherNetworkClassifier(**NETWORK | options, keep_projections="table").fit(X, y)
