"""``rank_features``: against slow loops and other libraries, and the same bits however the data is stored."""

from itertools import pairwise
from threading import Lock

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import oracles
import pandas as pd
import pytest
import zarr
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kernels.criteria.columns import labelled_columns
from scipy import stats
from sklearn.feature_selection import f_classif

import fxdask
from fxdask.errors import InvalidInputError, MemoryPlanError, StoreExistsError, StoreWriteError
from fxdask.kernels.criteria.relief import spread_anchors
from fxdask.planning import rank_plan
from fxdask.sizes import MIB
from fxdask.store.ranking import RankingStore
from fxdask.tasks import rank as tasks
from fxdask.workflows import rank_request as workflow

LOOPS = ["fisher", "extended_fisher", "pearson", "kolmogorov_smirnov", "volume_of_overlap"]
ALL = list(fxdask.CRITERIA)


@pytest.fixture
def staged(monkeypatch):
    """Samples of any size are copied by columns, in small blocks and ranges."""
    monkeypatch.setattr(workflow, "SMALL", 0)
    monkeypatch.setattr(workflow, "MOST_READS", 0)
    monkeypatch.setattr(rank_plan, "FEWEST_FEATURES", 2)
    monkeypatch.setattr(rank_plan, "BYTES_PER_RANGE", 4_000)


@pytest.fixture(scope="module")
def mixed():
    """500 samples of three classes: other means, other variances, ties, a constant, a perfect separator."""
    rng = np.random.default_rng(3)
    y = rng.permutation(np.repeat([0, 1, 2], [250, 150, 100]))
    X = rng.standard_normal((500, 9)).astype(np.float32)
    X[:, 1] += y
    X[:, 2] *= 1 + 2 * y
    X[:, 3] = np.round(X[:, 3] + 0.5 * y)
    X[:, 4] = 2.5
    X[:, 5] = y * 3
    X[:, 6] = np.where(rng.random(500) < 0.7, 0.0, X[:, 6] + y)
    return X, y


def bits(ranking):
    """Everything that must not depend on how the data is stored and split."""
    found = [ranking.scores[name] for name in ranking.criteria]
    found += [ranking.p_values[name] for name in ranking.p_values]
    return [array.tobytes() for array in (*found, ranking.missing, ranking.shown, ranking.curves)]


# All values of one class are missing.
@example(drawn=(np.array([[0.5, 1.4, 1.3, 0.9]], dtype=np.float32), np.array([1, 1, 0, 0])), share=0.2, wide=False)
@given(drawn=labelled_columns(max_columns=3, max_samples=30), share=st.sampled_from([0.0, 0.2]), wide=st.booleans())
@settings(max_examples=15)
def test_scores_equal_those_of_loops(drawn, share, wide):
    values, codes = drawn[0].T.copy(), drawn[1]
    values[np.random.default_rng(0).random(values.shape) < share] = np.nan
    X = values.astype(np.float64) if wide else values
    found = fxdask.rank_features(X, codes, LOOPS, missing="omit")
    assert found.missing.tolist() == np.isnan(values).sum(axis=0).tolist()
    for name in LOOPS:
        expected = oracles.feature_scores(values, codes, name)
        scores = np.broadcast_to(found.scores[name], expected.shape)
        np.testing.assert_allclose(scores, expected, rtol=1e-9, atol=1e-12, err_msg=name)
        ranked = found.score(name)[found.order(name)]
        assert all(better >= worse for better, worse in pairwise(ranked.tolist()))


def test_statistics_and_p_values_equal_those_of_other_libraries(mixed):
    X, y = mixed
    two, labels = X[y < 2], y[y < 2]
    found = fxdask.rank_features(two, labels, ["pearson", "kolmogorov_smirnov"])
    for feature in range(X.shape[1]):
        expected = stats.ks_2samp(two[labels == 0, feature], two[labels == 1, feature])
        assert found.score("kolmogorov_smirnov")[feature] == expected.statistic
        assert found.p_value("kolmogorov_smirnov")[feature] == pytest.approx(expected.pvalue, rel=1e-9)
        if np.ptp(two[:, feature]) > 0:
            correlation = stats.pearsonr(two[:, feature].astype(np.float64), labels).statistic
            assert found.score("pearson")[feature] == pytest.approx(abs(correlation), rel=1e-9)
    several = fxdask.rank_features(X[:, :4], y, ["pearson"])
    np.testing.assert_allclose(several.p_value("pearson"), f_classif(X[:, :4].astype(np.float64), y)[1], rtol=1e-9)


def test_relief_equals_that_of_loops(mixed):
    X, y = mixed[0][:120].astype(np.float64) * 1.1, mixed[1][:120]
    priors = (np.bincount(y) / len(y)).tolist()
    for n_anchors, anchors in ((None, range(120)), (30, spread_anchors(y, 3, 30).tolist())):
        found = fxdask.rank_features(X, y, ["relief"], n_anchors=n_anchors, n_neighbors=4)
        expected = oracles.relief(X, y, list(anchors), priors, n_neighbours=4)
        np.testing.assert_allclose(found.scores["relief"][0], expected, rtol=1e-9, atol=1e-12)
        assert found.n_anchors == len(anchors)


def test_constants_separators_and_ties_have_defined_scores(mixed):
    X, y = mixed
    found = fxdask.rank_features(X, y, ALL, n_anchors=None)
    for name in ALL:
        scores = found.score(name)
        assert not np.isnan(scores).any(), name
        assert scores[5] == scores.max(), name
        assert scores[4] == (-np.inf if "fisher" in name else 0), name
        assert sorted(found.rank(name)) == list(range(1, 10))


@given(
    rows=st.integers(40, 600),
    columns=st.integers(1, 9),
    per_range=st.integers(500, 20_000),
    per_block=st.integers(1, 9),
    kind=st.sampled_from(["zarr", "dask", "npy", "parquet"]),
)
@settings(max_examples=6)
def test_the_bits_do_not_depend_on_chunks(mixed, tmp_path_factory, rows, columns, per_range, per_block, kind):
    X, y = mixed
    expected = bits(fxdask.rank_features(X, y, ALL, n_anchors=20))
    folder = tmp_path_factory.mktemp("bits")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workflow, "SMALL", 0)
        patch.setattr(workflow, "MOST_READS", 10**6 * (rows % 2))
        patch.setattr(rank_plan, "FEWEST_FEATURES", 1)
        patch.setattr(rank_plan, "BYTES_PER_RANGE", per_range)
        patch.setattr(rank_plan, "BYTES_PER_BLOCK", 4 * len(X) * per_block)
        source = stored(X, folder, kind, (rows, columns))
        patch.setitem(dask.config.config, "num_workers", 1 + rows % 4)
        found = fxdask.rank_features(source, y, ALL, n_anchors=20, store=folder / "r.zarr" if rows % 3 else None)
    assert bits(found) == expected


@pytest.mark.parametrize(
    ("kind", "missing"), [("zarr", "error"), ("dask", "omit"), ("npy", "omit"), ("parquet", "error")]
)
def test_moments_are_added_in_one_pass_over_the_rows(mixed, staged, tmp_path, monkeypatch, kind, missing):
    X, y = mixed
    X = X.copy()
    criteria, plain = ["fisher", "pearson", "volume_of_overlap"], {"location": "mean", "spread": "std"}
    if missing == "omit":
        X[::5, 2], X[7] = np.nan, np.nan
    else:
        criteria = [*criteria, "relief"]
    monkeypatch.setattr(workflow, "SMALL", 10**9)
    expected = fxdask.rank_features(X, y, criteria, missing=missing, **plain)
    monkeypatch.setattr(workflow, "SMALL", 0)
    monkeypatch.setattr(tasks, "stage_range", None)
    source = stored(X, tmp_path, kind, (70, 4))
    for store in (None, tmp_path / "r.zarr", tmp_path / "r.zarr"):
        found = fxdask.rank_features(source, y, criteria, missing=missing, store=store, **plain)
        assert bits(found)[:-1] == bits(expected)[:-1]  # the curves are those of some samples
        assert np.allclose(found.curves[:, 0], expected.curves[:, 0])
    X[400, 3] = np.inf
    with pytest.raises(InvalidInputError, match="contains infinity, first in sample 400, feature 3"):
        fxdask.rank_features(da.from_array(X, chunks=(90, 9)), y, criteria, missing=missing, **plain)


def stored(X, folder, kind, chunks):
    """The samples as a file or a lazy array of these chunks."""
    if kind == "dask":
        return da.from_array(X, chunks=chunks)
    if kind == "parquet":
        pd.DataFrame(X, columns=[f"f{i}" for i in range(X.shape[1])]).to_parquet(
            folder / "x.parquet", row_group_size=chunks[0]
        )
        return folder / "x.parquet"
    if kind == "npy":
        np.save(folder / "x.npy", X)
        return folder / "x.npy"
    zarr.create_array(folder / "x.zarr", data=X, chunks=tuple(map(min, zip(chunks, X.shape, strict=True))))
    return folder / "x.zarr"


def test_tables_give_the_bits_of_arrays_and_keep_their_names(mixed, tmp_path):
    X, y = mixed
    expected = bits(fxdask.rank_features(X, y))
    names = [f"f{i}" for i in range(9)]
    frame = pd.DataFrame(X, columns=names)
    frame.assign(y=y, note="text").to_parquet(tmp_path / "x.parquet", row_group_size=170)
    for table, labels in (
        (frame, y),
        (dd.from_pandas(frame, npartitions=3), y),
        (fxdask.table(tmp_path / "x.parquet", names), "y"),
    ):
        found = fxdask.rank_features(table, labels)
        assert found.names.tolist() == names
        assert bits(found) == expected
    with pytest.raises(InvalidInputError, match="columns that do not hold numbers: 'note'.*encode them as numbers"):
        fxdask.rank_features(tmp_path / "x.parquet", "y")
    with_text = frame.assign(note="text")
    for table, labels in ((tmp_path / "x.parquet", "y"), (with_text, y), (dd.from_pandas(with_text, npartitions=2), y)):
        assert fxdask.rank_features(table, labels, numeric_only=True).names.tolist() == names


def test_missing_values_are_refused_or_counted(mixed, staged, tmp_path):
    X, y = mixed
    bad = X.copy()
    bad[[321, 322], 2] = np.nan
    frame = pd.DataFrame(bad, columns=list("abcdefghi"))
    whole = pd.DataFrame({"n": pd.array([1, None, 3, 4] * 125, "Int64"), "m": np.arange(500)})
    whole.to_parquet(tmp_path / "whole.parquet")
    for source in (bad, da.from_array(bad, chunks=(100, 9))):
        with pytest.raises(InvalidInputError, match="NaN, first in sample 321, feature 2; .*, or pass missing=.omit."):
            fxdask.rank_features(source, y, ["pearson"], store=tmp_path / "refused.zarr")
        assert not (tmp_path / "refused.zarr").exists()
        found = fxdask.rank_features(source, y, ["extended_fisher", "kolmogorov_smirnov"], missing="omit")
        assert found.missing.tolist() == [0, 0, 2, 0, 0, 0, 0, 0, 0]
    with pytest.raises(InvalidInputError, match="column 'c'"):
        fxdask.rank_features(frame, y)
    assert fxdask.rank_features(tmp_path / "whole.parquet", y, missing="omit").missing.tolist() == [125, 0]
    with pytest.raises(InvalidInputError, match="relief compares whole samples, but X has 2 missing values, .* 'c'"):
        fxdask.rank_features(frame, y, ["relief"], missing="omit")
    bad[5, 0] = np.inf
    with pytest.raises(InvalidInputError, match="contains infinity, first in sample 5, feature 0"):
        fxdask.rank_features(bad, y, missing="omit")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scale", [2.0**1021, 2.0**-1040])
def test_scores_and_curves_do_not_depend_on_the_scale(mixed, tmp_path, scale):
    X, y = mixed
    X = np.clip(np.delete(X, 2, axis=1), -7, 7).astype(np.float64)
    found, expected = (fxdask.rank_features(values, y, ALL) for values in (X * scale, X))
    for criterion in ALL:
        np.testing.assert_allclose(found.scores[criterion], expected.scores[criterion], rtol=1e-5, atol=1e-7)
    assert np.isfinite(found.curves).all()
    found.to_html(tmp_path / "r.html")


def test_plain_moments_are_means_and_standard_deviations(mixed):
    X, y = mixed
    found = fxdask.rank_features(X, y, ["fisher"], location="mean", spread="std", shrink_spread=False)
    wide = X.astype(np.float64)
    means, variances = (np.array([f(wide[y == k], axis=0) for k in range(3)]) for f in (np.mean, np.var))
    expected = [(means[0] - means[j])[:4] ** 2 / (variances[0] + variances[j])[:4] for j in (1, 2)]
    np.testing.assert_allclose(found.scores["fisher"][0, :4], np.min(expected, axis=0), rtol=1e-9)


def test_an_interrupted_ranking_is_resumed(mixed, staged, tmp_path, monkeypatch):
    X, y = mixed
    store, measured = tmp_path / "r.zarr", []
    zarr.create_array(tmp_path / "x.zarr", data=X, chunks=(50, 9))
    expected = bits(fxdask.rank_features(tmp_path / "x.zarr", y, ALL, n_anchors=10))
    original = tasks._criteria

    def interrupted(job, columns, features, first):
        measured.append(first)
        if len(measured) == 3:
            raise KeyboardInterrupt
        return original(job, columns, features, first)

    monkeypatch.setattr(tasks, "_criteria", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fxdask.rank_features(tmp_path / "x.zarr", y, ALL, n_anchors=10, store=store)
    assert not RankingStore.open(str(store), finished=False).header["finished"]
    monkeypatch.setattr(tasks, "_criteria", original)
    monkeypatch.setattr(RankingStore, "write_range", None)  # all copies are there already
    found = fxdask.rank_features(tmp_path / "x.zarr", y, ALL, n_anchors=10, store=store)
    assert found.info["n_blocks_resumed"] >= 1
    assert bits(found) == expected
    assert sorted(path.name for path in store.iterdir()) == [
        "blocks_done",
        "curves",
        "manifest",
        "relief",
        "results",
        "zarr.json",
    ]
    monkeypatch.setattr(tasks, "_criteria", None)
    assert bits(fxdask.rank_features(tmp_path / "x.zarr", y, ALL, n_anchors=10, store=store)) == expected


@pytest.mark.parametrize("step", ["_sorted_results", "_criteria"], ids=["before reading", "after reading"])
def test_a_late_block_of_removed_copies_is_refused(mixed, staged, tmp_path, monkeypatch, step):
    X, y = mixed
    original = getattr(tasks, step)

    def late(job, *arguments):
        with only_one:
            RankingStore.open(job.store, "r+", finished=False).drop_staging()
        return original(job, *arguments)

    only_one = Lock()  # two blocks run at once, and only one thread at a time may remove a folder
    monkeypatch.setattr(tasks, step, late)
    zarr.create_array(tmp_path / "x.zarr", data=X, chunks=(50, 9))
    with pytest.raises(StoreWriteError, match="was finished while this part was computed"):
        fxdask.rank_features(tmp_path / "x.zarr", y, ["extended_fisher"], store=tmp_path / "r.zarr")


def test_a_store_of_other_data_or_parameters_is_refused(mixed, tmp_path):
    X, y = mixed
    store = tmp_path / "r.zarr"
    first = fxdask.rank_features(X, y, ["fisher"], store=store)
    assert first.store == str(store)
    with pytest.raises(StoreExistsError, match="made from other samples; choose another path, or pass overwrite=True"):
        fxdask.rank_features(X[:, ::-1].copy(), y, ["fisher"], store=store)
    with pytest.raises(StoreExistsError, match="criteria=.'fisher'. instead of .'pearson'."):
        fxdask.rank_features(X, y, ["pearson"], store=store)
    assert fxdask.rank_features(X, y, ["pearson"], store=store, overwrite=True).criteria == ("pearson",)
    with pytest.raises(StoreExistsError, match="holds 'ranking', not a model"):
        fxdask.FisherNetworkClassifier(n_nodes=20, store=store).fit(X, y)


def test_parameters_that_the_scores_do_not_depend_on_are_no_other_job(mixed, tmp_path):
    X, y = mixed
    options = [{"random_state": None}, {"n_anchors": 5, "location": "median", "priors": "equal"}]
    found = [fxdask.rank_features(X, y, ["pearson"], store=tmp_path / "r.zarr", **each) for each in options]
    assert found[0].score("pearson").tobytes() == found[1].score("pearson").tobytes()
    with pytest.raises(StoreExistsError, match="missing='error' instead of 'omit'"):
        fxdask.rank_features(X, y, ["pearson"], store=tmp_path / "r.zarr", missing="omit")
    # Mutual information breaks ties by noise, whose seed the store remembers.
    noisy = [
        fxdask.rank_features(X, y, ["mutual_information"], store=tmp_path / "m.zarr", random_state=None)
        for _ in range(2)
    ]
    assert noisy[0].score("mutual_information").tobytes() == noisy[1].score("mutual_information").tobytes()
    with pytest.raises(StoreExistsError, match="seed="):
        fxdask.rank_features(X, y, ["mutual_information"], store=tmp_path / "m.zarr", random_state=3)


def test_the_result_tells_how_many_anchors_relief_had():
    y = np.repeat(np.arange(5), [100, 2, 2, 2, 2])
    X = np.random.default_rng(0).standard_normal((len(y), 3))
    assert fxdask.rank_features(X, y, ["relief"], n_anchors=2).n_anchors == 5, "one of each class at least"
    assert fxdask.rank_features(X, y, ["relief"], n_anchors=10**6).n_anchors == len(y)
    assert fxdask.rank_features(X, y, ["fisher"]).n_anchors is None


def test_an_outlier_does_not_rule_the_density_overlap():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((2_000, 1)).astype(np.float32), np.arange(2_000) % 2
    X[y == 1] += 1
    plain = fxdask.rank_features(X, y, ["density_overlap"]).score("density_overlap")
    X[0] = 1e9
    assert fxdask.rank_features(X, y, ["density_overlap"]).score("density_overlap") == pytest.approx(plain, abs=2e-3)


def test_the_table_of_a_ranking(mixed, tmp_path):
    X, y = mixed
    found = fxdask.rank_features(X, y, ["fisher", "pearson"])
    frame = found.to_frame()
    assert frame.columns.tolist() == [
        "feature",
        "fisher_score",
        "fisher_rank",
        "pearson_score",
        "pearson_rank",
        "pearson_p_value",
        "pearson_p_bh",
        "pearson_p_by",
        "missing",
    ]
    assert frame["feature"].tolist() == [f"x{i}" for i in range(9)]
    assert (frame["pearson_p_by"] >= frame["pearson_p_bh"]).all()
    found.to_csv(tmp_path / "r.csv")
    found.to_parquet(tmp_path / "r.parquet")
    for read in (pd.read_csv(tmp_path / "r.csv"), pd.read_parquet(tmp_path / "r.parquet")):
        pd.testing.assert_frame_equal(read, frame, check_dtype=False)
    found.to_csv(tmp_path / "r.csv")  # its own tables are replaced
    found.to_parquet(tmp_path / "r.parquet")
    for _ in range(2):  # whatever their names
        found.to_parquet(tmp_path / "ranking")
        found.to_csv(tmp_path / "c.parquet")
    assert pd.read_csv(tmp_path / "c.parquet")["feature"].tolist() == frame["feature"].tolist()
    accepted = frame["pearson_p_value"] <= found.threshold("pearson", 0.05)
    assert accepted.tolist() == (frame["pearson_p_bh"] <= 0.05).tolist()
    with pytest.raises(InvalidInputError, match="no p-values of 'fisher'; it has those of 'pearson'"):
        found.p_value("fisher")
    with pytest.raises(InvalidInputError, match="must be 'bh' or 'by', not 'holm'"):
        found.threshold("pearson", 0.05, "holm")


@pytest.mark.parametrize("write", ["to_parquet", "to_csv", "to_html"])
def test_a_failed_write_is_reported_in_one_sentence(mixed, write):
    X, y = mixed
    with pytest.raises(StoreWriteError, match="can be written to /proc/x: .*; choose another path"):
        getattr(fxdask.rank_features(X, y, ["pearson"]), write)("/proc/x")


def test_no_other_file_is_replaced_by_a_table(mixed, tmp_path):
    X, y = mixed
    found = fxdask.rank_features(X, y, ["pearson"])
    pd.DataFrame(X).rename(columns=str).to_parquet(tmp_path / "train.parquet")
    (tmp_path / "notes.csv").write_text("mine,yours\n1,2\n")
    (tmp_path / "torn.parquet").write_bytes(b"PAR1")
    for write, name in (
        (found.to_parquet, "train.parquet"),
        (found.to_csv, "notes.csv"),
        (found.to_parquet, "torn.parquet"),
    ):
        with pytest.raises(StoreExistsError, match=f"{name} exists and is not the table of a ranking"):
            write(tmp_path / name)
    with pytest.raises(InvalidInputError, match="no table can be written to .*: it is a folder"):
        found.to_csv(tmp_path)
    with pytest.raises(InvalidInputError, match="must be the path of a file, not 3"):
        found.to_parquet(3)


def test_several_tests_of_a_feature_are_corrected(mixed):
    X, y = mixed
    found = fxdask.rank_features(X, y, ["kolmogorov_smirnov"])
    smallest = found.p_values["kolmogorov_smirnov"].min(axis=0)
    assert np.array_equal(found.p_value("kolmogorov_smirnov"), np.minimum(1, 3 * smallest))


def test_bad_parameters_are_refused_before_any_work(mixed):
    X, y = mixed
    for wrong, message in (
        ({"criteria": []}, "criteria is empty"),
        ({"criteria": None}, "criteria must be a list of names, not None"),
        ({"criteria": [["fisher"]]}, r"criterion=\['fisher'\] is not known; choose one of 'extended_fisher'"),
        ({"criteria": ["gini"]}, "criterion='gini' is not known"),
        ({"location": "mode"}, "location='mode'"),
        ({"missing": "drop"}, "missing='drop'"),
        ({"n_anchors": 0}, "n_anchors must be a whole number"),
        ({"n_neighbors": 1.5}, "n_neighbors must be a whole number"),
        ({"priors": [0.5, -1]}, "priors must be"),
        ({"memory_limit": "lots"}, "memory_limit"),
        ({"random_state": -1}, "random_state"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            fxdask.rank_features(X, y, **wrong)
    with pytest.raises(MemoryPlanError, match="ranking needs all 500 values .* but a task may use 0 B"):
        fxdask.rank_features(X, y, memory_limit=MIB)


def test_features_of_equal_means_and_unequal_variances():
    """The paper's case: a criterion that looks at means alone ranks such features among noise."""
    rng = np.random.default_rng(0)
    y = np.arange(2_000) % 2
    X = rng.standard_normal((2_000, 30))
    wide = [4, 11, 17, 23]
    X[np.ix_(y == 1, wide)] *= 2
    found = fxdask.rank_features(X, y, ALL, n_anchors=50)
    for name in ("extended_fisher", "kolmogorov_smirnov", "mutual_information", "density_overlap"):
        assert set(found.order(name)[:4]) == set(wide), name
    for name in ("fisher", "pearson"):
        assert set(found.order(name)[:4]) != set(wide), name
