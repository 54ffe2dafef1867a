"""FilterSelector: scikit-learn's conventions, every rule of selection, and lazy collections."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import zarr
from sklearn.feature_selection import SelectFdr, SelectKBest, SelectPercentile, f_classif
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

import fxdask
from fxdask import FilterSelector
from fxdask.errors import InvalidInputError, MemoryPlanError
from fxdask.sizes import MIB


@pytest.fixture(scope="module")
def data():
    """600 samples of three classes; each of the features 0 to 2 tells one of them apart, 3 repeats 0, 4 is constant."""
    rng = np.random.default_rng(0)
    y = np.arange(600) % 3
    X = rng.standard_normal((600, 12)).astype(np.float32)
    X[np.arange(600), y] += 3 - y
    X[:, 3] = X[:, 0] + 0.1 * X[:, 3]
    X[:, 4] = 7
    return X, y


def test_scikit_learn_accepts_it():
    for result in check_estimator(FilterSelector(k=2), on_fail=None):
        assert result["status"] in ("passed", "skipped"), (result["check_name"], result["exception"])


def test_rules_select_what_those_of_scikit_learn_select(data):
    X, y = data
    wide = np.delete(X, 4, axis=1).astype(np.float64)
    for own, other in (
        ({"k": 3}, SelectKBest(f_classif, k=3)),
        ({"k": "all"}, SelectKBest(f_classif, k="all")),
        ({"percentile": 40}, SelectPercentile(f_classif, percentile=40)),
        ({"fdr": 0.05}, SelectFdr(f_classif, alpha=0.05)),
    ):
        selector = FilterSelector("pearson", **own).fit(wide, y)
        assert selector.get_support().tolist() == other.fit(wide, y).get_support().tolist(), own
    best = FilterSelector("pearson", k=3).fit(wide, y)
    kept = FilterSelector("pearson", threshold=best.scores_[best.selected_[2]]).fit(wide, y)
    assert kept.selected_.tolist() == best.selected_.tolist()
    np.testing.assert_allclose(best.pvalues_, f_classif(wide, y)[1], rtol=1e-9)
    by, bh = (FilterSelector("pearson", fdr=0.05, fdr_method=rule).fit(wide, y).get_support() for rule in ("by", "bh"))
    assert (by <= bh).all()


def test_every_class_gets_its_best_features(data):
    X, y = data
    shared = FilterSelector(k=2).fit(X, y)
    assert {0, 3} == set(shared.selected_)
    each = FilterSelector(k=1, per_class=True).fit(X, y)
    best = fxdask.rank_features(X, y, ["extended_fisher"]).scores["extended_fisher"].argmax(axis=1)
    assert set(each.selected_) == set(best)
    assert np.array_equal(each.class_scores_.max(axis=0), each.scores_)
    assert FilterSelector("kolmogorov_smirnov", fdr=1e-9, per_class=True).fit(X, y).get_support()[:4].all()


def test_constant_features_are_not_selected_and_all_may_be_asked_for(data):
    X, y = data
    assert FilterSelector(k="all").fit(X, y).get_support().tolist() == [True] * 4 + [False] + [True] * 7
    assert FilterSelector(k=99).fit(X, y).get_support().sum() == 11


def test_redundancy_leaves_out_what_is_known_already(data):
    X, y = data
    mrmr = FilterSelector("pearson", k=3, redundancy="mrmr").fit(X, y)
    assert len({0, 3} & set(mrmr.selected_)) == 1
    assert {1, 2} & set(mrmr.selected_)
    joint = FilterSelector(k=3, redundancy="joint").fit(X, y)
    assert len({0, 3} & set(joint.selected_)) == 1
    assert 1 in joint.selected_
    stored = da.from_array(X, chunks=(170, 5))
    for how, expected in (("mrmr", mrmr), ("joint", joint)):
        again = FilterSelector(expected.criterion, k=3, redundancy=how, pool_size=9).fit(stored, y)
        assert again.selected_.tolist() == expected.selected_.tolist()


def test_joint_selection_sees_features_that_help_only_together():
    """Two features whose difference tells the class, each of them drowned in what both share."""
    rng = np.random.default_rng(1)
    y = np.arange(2000) % 2
    X = rng.standard_normal((2000, 8))
    shared = 8 * rng.standard_normal(2000)
    X[:, 2], X[:, 5] = shared + y + 0.3 * X[:, 2], shared - y + 0.3 * X[:, 5]
    X[:, 7] += 0.5 * y
    alone = FilterSelector("pearson", k=2).fit(X, y)
    assert set(alone.selected_) != {2, 5}
    assert {2, 5} <= set(FilterSelector("pearson", k=3, redundancy="joint").fit(X, y).selected_)


def test_set_output_leaves_dask_collections_lazy(data):
    X, y = data
    frame = pd.DataFrame(X, columns=[f"f{i}" for i in range(12)])
    selector = FilterSelector(k=3).set_output(transform="pandas").fit(frame, y)
    assert isinstance(selector.transform(frame), pd.DataFrame)
    kept = selector.transform(dd.from_pandas(frame, npartitions=3))
    assert isinstance(kept, dd.DataFrame)
    pd.testing.assert_frame_equal(kept.compute(), selector.transform(frame), check_dtype=False)
    assert isinstance(selector.transform(da.from_array(X, chunks=(100, 12))), da.Array)


def test_columns_of_a_dask_frame_may_have_numbers_for_names(data):
    X, y = data
    partitions = dd.from_pandas(pd.DataFrame(X), npartitions=2)
    selector = FilterSelector(k=3).fit(partitions, y)
    assert list(selector.transform(partitions).columns) == selector.get_support(indices=True).tolist()


def test_lazy_in_lazy_out(data, tmp_path):
    X, y = data
    expected = FilterSelector(k=3).fit(X, y)
    lazy = da.from_array(X, chunks=(100, 12))
    selector = FilterSelector(k=3).fit(lazy, da.from_array(y, chunks=100))
    kept = selector.transform(lazy)
    assert isinstance(kept, da.Array)
    assert np.array_equal(kept.compute(), expected.transform(X))
    names = [f"f{i}" for i in range(12)]
    frame = pd.DataFrame(X, columns=names)
    partitions = dd.from_pandas(frame, npartitions=3)
    named = FilterSelector(k=3).fit(partitions, y)
    assert list(named.transform(partitions[names[::-1]]).columns) == named.get_feature_names_out().tolist()
    zarr.create_array(tmp_path / "x.zarr", data=X)
    assert FilterSelector(k=3).fit(tmp_path / "x.zarr", y).selected_.tolist() == expected.selected_.tolist()
    with pytest.raises(InvalidInputError, match="dask.array.from_zarr"):
        expected.transform(tmp_path / "x.zarr")
    with pytest.raises(InvalidInputError, match="X has 11 features, but FilterSelector is expecting 12"):
        expected.transform(lazy[:, 1:])
    with pytest.raises(InvalidInputError, match="'f0' is missing"):
        named.transform(partitions[names[1:]])
    with pytest.raises(InvalidInputError, match="X has 1 dimensions but needs 2"):
        expected.transform(lazy[:, 0])


def test_the_inverse_of_a_lazy_collection_is_lazy(data):
    X, y = data
    selector = FilterSelector(k=3).fit(X, y)
    expected = selector.inverse_transform(selector.transform(X))
    lazy = da.from_array(X, chunks=(100, 5))
    placed = selector.inverse_transform(selector.transform(lazy))
    assert isinstance(placed, da.Array)
    assert placed.shape == X.shape
    assert placed.dtype == X.dtype
    assert np.array_equal(placed.compute(), expected)
    frame = dd.from_pandas(pd.DataFrame(selector.transform(X)), npartitions=3)
    placed = selector.inverse_transform(frame)
    assert isinstance(placed, da.Array)
    assert np.array_equal(placed.compute(), expected)
    with pytest.raises(InvalidInputError, match="X has 12 features, but FilterSelector is expecting 3"):
        selector.inverse_transform(lazy)


def test_tables_keep_their_names_and_columns_without_numbers_are_left_out(data):
    X, y = data
    frame = pd.DataFrame(X, columns=[f"f{i}" for i in range(12)])
    frame.insert(1, "note", "text")
    with pytest.raises(InvalidInputError, match="'note' .text.; encode them as numbers"):
        FilterSelector().fit(frame, y)
    selector = FilterSelector(k=2, numeric_only=True).set_output(transform="pandas").fit(frame, y)
    assert selector.transform(frame).columns.tolist() == ["f0", "f3"]
    assert selector.scores_[1] == -np.inf
    assert selector.n_features_in_ == 13
    assert selector.get_feature_names_out().tolist() == ["f0", "f3"]
    assert selector.inverse_transform(frame[["f0", "f3"]].to_numpy()).shape == (600, 13)
    plain = selector.set_output(transform="default").transform(frame[frame.columns[::-1]])
    assert plain.dtype == X.dtype
    assert np.array_equal(plain, X[:, [0, 3]])


def test_missing_values_are_left_out_column_by_column(data):
    X, y = data
    X = X.copy()
    X[::7, 1] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        FilterSelector().fit(X, y)
    selector = FilterSelector(k=3, missing="omit").fit(X, y)
    assert selector.missing_[1] == 86
    assert selector.transform(X).shape == (600, 3)
    assert FilterSelector(k=3, missing="omit", redundancy="mrmr").fit(X, y).selected_.size == 3
    frame = pd.DataFrame(X, columns=[f"f{i}" for i in range(12)])
    for samples, name in ((X, "x1"), (frame, "f1")):
        with pytest.raises(InvalidInputError, match=f"whole samples, but feature '{name}' has 86 missing values"):
            FilterSelector(k=3, missing="omit", redundancy="joint").fit(samples, y)


def test_a_pipeline_is_searched(data):
    X, y = data
    pipeline = make_pipeline(FilterSelector(), LogisticRegression())
    grid = {"filterselector__k": [1, 3], "filterselector__criterion": ["fisher", "pearson"]}
    search = GridSearchCV(pipeline, grid, cv=2).fit(X, y)
    assert search.best_params_["filterselector__k"] == 3


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"criterion": "gini"}, "criterion='gini' is not known"),
        ({"k": 0}, "k must be a whole number of at least 1"),
        ({"percentile": 101}, "percentile must be a number from 0 to 100, not 101"),
        ({"percentile": True}, "percentile must be a number from 0 to 100, not True"),
        ({"criterion": "pearson", "fdr": True}, "fdr must be a number from 0 to 1, not True"),
        ({"per_class": "yes"}, "per_class must be True or False, not 'yes'"),
        ({"numeric_only": 1}, "numeric_only must be True or False, not 1"),
        ({"percentile": 5, "fdr": 0.1}, "percentile and fdr are given but one rule selects"),
        ({"fdr": 0.1}, "fdr needs p-values, .* choose one of 'pearson', 'kolmogorov_smirnov'"),
        ({"criterion": "pearson", "fdr": 0.1, "fdr_method": "holm"}, "fdr_method='holm' is not known"),
        ({"criterion": "pearson", "per_class": True}, "per_class=True needs scores of each class"),
        ({"redundancy": "pca"}, "redundancy='pca' is not known"),
        ({"redundancy": "mrmr", "threshold": 1.0}, "so threshold cannot be used with it; set k"),
        ({"redundancy": "joint", "k": "all"}, "so k='all' cannot be used with it"),
        ({"redundancy": "mrmr", "pool_size": 5}, "pool_size is 5 but k=10 features are to be selected"),
    ],
)
def test_contradicting_parameters_are_refused(data, parameters, message):
    with pytest.raises(InvalidInputError, match=message):
        FilterSelector(**parameters).fit(*data)


def test_candidates_that_do_not_fit_are_refused(data, monkeypatch):
    X, y = data
    monkeypatch.setattr("fxdask.workflows.redundancy.factor_bytes", lambda *_: 10**15)
    with pytest.raises(MemoryPlanError, match="among 11 candidates and 600 samples needs .* TiB but .* pool_size"):
        FilterSelector(k=3, redundancy="joint", memory_limit=4096 * MIB).fit(X, y)
