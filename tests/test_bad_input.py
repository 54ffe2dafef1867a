"""Bad input gets one clear sentence and leaves nothing half-written behind."""

import shutil

import dask
import dask.array as da
import numpy as np
import pytest
import zarr

import fxdask
from fxdask import FisherNetworkClassifier
from fxdask.errors import (
    DiskSpaceError,
    InvalidInputError,
    StoreExistsError,
    StoreFormatError,
    StoreUnfinishedError,
    WeightStreamError,
)

X = np.random.default_rng(0).standard_normal((40, 4))
Y = np.arange(40) % 2


def with_value(value, row=31, column=2):
    spoilt = X.copy()
    spoilt[row, column] = value
    return spoilt


def fit(X=X, y=Y, **parameters):
    return FisherNetworkClassifier(**{"n_nodes": 50, "n_selected": 3, **parameters}).fit(X, y)


def one_sentence(error):
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(("value", "word"), [(np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity")])
@pytest.mark.parametrize("kind", ["numpy", "dask", "zarr", "npy"])
def test_not_finite(value, word, kind, tmp_path):
    spoilt = with_value(value)
    np.save(tmp_path / "X.npy", spoilt)
    zarr.create_array(tmp_path / "X.zarr", data=spoilt, chunks=(8, 4))
    data = {
        "numpy": spoilt,
        "dask": da.from_array(spoilt, chunks=(8, 2)),
        "zarr": tmp_path / "X.zarr",
        "npy": tmp_path / "X.npy",
    }[kind]
    store = tmp_path / "model.zarr"
    with pytest.raises(InvalidInputError, match=f"contains {word}, first in sample 31, feature 2") as error:
        fit(data, store=store)
    one_sentence(error)
    assert not store.exists()


def test_not_finite_leaves_an_earlier_model_alone(tmp_path):
    store = tmp_path / "model.zarr"
    fit(store=store)
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    for overwrite in (False, True):
        with pytest.raises(InvalidInputError, match="NaN"):
            fit(with_value(np.nan), store=store, overwrite=overwrite)
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("kind", ["dask", "zarr"])
def test_not_finite_in_the_middle_of_scoring(kind, tmp_path):
    """Chunks are written by the time the bad one is read: what this call created is removed."""
    wide = np.random.default_rng(1).standard_normal((4_000, 2_000)).astype(np.float32)
    clf = fit(wide[:40])
    wide[3_990, 1_234] = np.inf
    if kind == "dask":
        data = da.from_array(wide, chunks=(900, 2_000))
    else:
        data = zarr.create_array(tmp_path / "X.zarr", data=wide, chunks=(700, 2_000))
    with (
        dask.config.set(scheduler="synchronous"),
        pytest.raises(InvalidInputError, match="infinity, first in sample 3990, feature 1234"),
    ):
        fxdask.batch_score(clf, data, tmp_path / "out.zarr")
    assert not (tmp_path / "out.zarr").exists()


def test_not_finite_at_predict():
    clf = fit()
    with pytest.raises(ValueError, match="NaN"):
        clf.predict(with_value(np.nan))
    with pytest.raises(InvalidInputError, match="NaN, first in sample"):
        clf.predict(da.from_array(with_value(np.nan), chunks=(20, 4))).compute()


def test_another_length_of_y():
    with pytest.raises(InvalidInputError, match="y has 39 labels but X has 40 samples"):
        fit(y=Y[:39])


def test_one_class_only():
    with pytest.raises(InvalidInputError, match="y has one class only"):
        fit(y=np.zeros(40))


def test_a_class_of_one_sample():
    y = Y.copy()
    y[7] = 5
    with pytest.raises(InvalidInputError, match="class 5 has 1 sample but a spread needs at least 2"):
        fit(y=y)


def test_labels_that_are_no_classes():
    with pytest.raises(ValueError, match="Unknown label type"):
        fit(y=X[:, 0])
    with pytest.raises(ValueError, match="y contains NaN"):
        fit(y=np.where(Y, np.nan, 1.0))
    with pytest.raises(ValueError, match="y is None"):
        fit(y=None)


@pytest.mark.parametrize("kind", ["numpy", "dask"])
def test_another_feature_count_at_predict(kind, tmp_path):
    clf = fit()
    data = X[:, :3] if kind == "numpy" else da.from_array(X[:, :3])
    with pytest.raises(ValueError, match="X has 3 features, but FisherNetworkClassifier is expecting 4 features"):
        clf.predict(data)
    with pytest.raises(ValueError, match="X has 3 features"):
        fxdask.batch_score(clf, data, tmp_path / "out.zarr")
    assert not (tmp_path / "out.zarr").exists()


def test_more_selected_than_nodes():
    with pytest.raises(InvalidInputError, match="n_selected is 60 but there are only 50 nodes"):
        fit(n_selected=60)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"criterion": "gini"}, "criterion='gini' is not known; choose one of 'extended_fisher', 'fisher'"),
        ({"location": "mode"}, "'interquartile_mean', 'mean', 'median'"),
        ({"spread": 3}, "spread=3 is not known; choose one of 'mad', 'iqr', 'std'"),
        ({"bandwidth": "wide"}, "'silverman', 'scott', 'sheather_jones' or a number"),
        ({"bandwidth": -1.0}, "bandwidth must be above 0"),
        ({"bandwidth": np.nan}, "bandwidth must be above 0"),
        ({"bandwidth_spread": "x"}, "bandwidth_spread='x' is not known"),
        ({"combine": "mean"}, "'sum', 'scaled', 'log'"),
        ({"normalize": "row"}, "None, 'sample', 'feature'"),
        ({"keep_projections": "none"}, "'selected', 'all'"),
        ({"keep_projections": "all"}, "needs a store"),
        ({"priors": "uniform"}, "'class_share', 'equal' or an array"),
        ({"priors": [1, 2, 3]}, "priors has 3 values but y has 2 classes"),
        ({"priors": [1, 0]}, "above 0"),
        ({"n_nodes": 0}, "n_nodes must be a whole number of at least 1, not 0"),
        ({"n_nodes": 2.5}, "n_nodes must be a whole number"),
        ({"n_selected": True}, "n_selected must be a whole number"),
        ({"nodes_per_block": "many"}, "nodes_per_block must be a whole number"),
        ({"random_state": -3}, "random_state must be 0 or more"),
    ],
)
def test_parameters(parameters, message):
    with pytest.raises(InvalidInputError) as error:
        fit(**parameters)
    assert message in one_sentence(error)


def test_unknown_chunk_sizes():
    lazy = da.from_array(X)
    unknown = lazy[lazy[:, 0] > -100]
    with pytest.raises(InvalidInputError, match=r"unknown chunk sizes; call X.compute_chunk_sizes\(\) first"):
        fit(unknown)
    with pytest.raises(InvalidInputError, match="unknown chunk sizes"):
        fit().predict(unknown)


@pytest.mark.parametrize("kind", ["numpy", "dask"])
def test_complex_and_objects(kind):
    wrap = (lambda array: da.from_array(array, chunks=(20, 4))) if kind == "dask" else np.asarray
    with pytest.raises(ValueError, match="Complex data not supported"):
        fit(wrap(X + 1j))
    with pytest.raises(ValueError, match="could not convert string to float|does not hold numbers"):
        fit(wrap(np.full((40, 4), "word", dtype=object)))
    with pytest.raises(ValueError, match="does not hold numbers|string"):
        fit(wrap(np.full((40, 4), "word")))


def test_shapes():
    with pytest.raises(InvalidInputError, match="X has 1 dimensions but needs 2"):
        fit(da.from_array(X[:, 0]))
    with pytest.raises(ValueError, match="Expected 2D array"):
        fit(X[:, 0])
    with pytest.raises(ValueError, match=r"0 feature\(s\)"):
        fit(da.zeros((40, 0)))


def test_values_beyond_float32():
    with pytest.raises(InvalidInputError, match="leave float32's range; scale X down"):
        fit(X * 1e200)
    with pytest.raises(InvalidInputError, match="leave float32's range; scale X down"):
        fit(X * 1e200, normalize="feature")
    large, plain = fit(X * 1e100, normalize="feature"), fit(X, normalize="feature")
    assert np.array_equal(large.selected_nodes_, plain.selected_nodes_)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no numbers here", "not a readable .npy file"),
        (None, "there is no file or folder"),
        ("short", "is cut short: it has"),
        ("objects", "holds Python objects"),
        ("fortran", "Fortran order"),
    ],
)
def test_files(content, message, tmp_path):
    path = tmp_path / "X.npy"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "short":
        np.save(path, X)
        path.write_bytes(path.read_bytes()[:-100])
    elif content == "objects":
        np.save(path, np.full((40, 4), None), allow_pickle=True)
    elif content == "fortran":
        np.save(path, np.asfortranarray(X))
    with pytest.raises(InvalidInputError, match=message):
        fit(path)


def test_a_folder_without_an_array(tmp_path):
    with pytest.raises(InvalidInputError, match="there is no Zarr array at"):
        fit(tmp_path)


# Stores


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"X": X + 1}, "made from other samples"),
        ({"X": X.astype(np.float32)}, "samples of another type"),
        ({"y": 1 - Y}, "made from other labels"),
        ({"y": Y + 10}, "made from other labels"),
        ({"n_nodes": 51}, "made from n_nodes=50 instead of 51"),
        ({"bandwidth": 0.5}, "bandwidth='silverman' instead of 0.5"),
        ({"random_state": 4}, "seed=0 instead of 4"),
    ],
)
@pytest.mark.parametrize("finished", [True, False])
def test_a_store_made_from_something_else(changed, message, finished, tmp_path):
    store = tmp_path / "model.zarr"
    fit(store=store)
    if not finished:
        unfinish(store)
    with pytest.raises(StoreExistsError) as error:
        fit(store=store, **changed)
    assert message in one_sentence(error)
    assert "overwrite=True" in one_sentence(error)
    assert fit(store=store, overwrite=True, **changed).predict(X).shape == (40,)
    assert np.array_equal(fxdask.load(store).predict(X), fit(**changed).predict(X))


def unfinish(store):
    opened = zarr.open_group(store)
    opened.attrs["fxdask"] = {**opened.attrs["fxdask"], "finished": False}


def test_a_store_of_a_newer_format(tmp_path):
    store = tmp_path / "model.zarr"
    fit(store=store)
    opened = zarr.open_group(store)
    opened.attrs["fxdask"] = {**opened.attrs["fxdask"], "format": 99}
    for call in (
        lambda: fxdask.load(store),
        lambda: fit(store=store),
        lambda: fit(store=store, overwrite=True),
    ):
        with pytest.raises(
            StoreFormatError, match="has store format 99 but this fxdask reads formats up to 1; upgrade"
        ):
            call()


def test_things_that_are_no_store(tmp_path):
    with pytest.raises(StoreFormatError, match="there is no fxdask store at"):
        fxdask.load(tmp_path / "nowhere")
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("hello")
    zarr.create_array(tmp_path / "array.zarr", data=X)
    zarr.open_group(tmp_path / "group.zarr", mode="w")
    for name in ("letters", "array.zarr", "group.zarr"):
        for overwrite in (False, True):
            with pytest.raises(StoreExistsError, match="not an fxdask store; choose another path"):
                fit(store=tmp_path / name, overwrite=overwrite)
        with pytest.raises(StoreFormatError, match="not an fxdask store"):
            fxdask.load(tmp_path / name)
    assert (tmp_path / "letters" / "dear.txt").read_text() == "hello"
    assert np.array_equal(zarr.open_array(tmp_path / "array.zarr")[:], X)


def test_scores_and_models_do_not_replace_each_other(tmp_path):
    clf = fit(store=tmp_path / "model.zarr")
    fxdask.batch_score(clf, X, tmp_path / "out.zarr")
    with pytest.raises(StoreExistsError, match="holds a model, which scores never replace"):
        fxdask.batch_score(clf, X, tmp_path / "model.zarr", overwrite=True)
    with pytest.raises(StoreExistsError, match="not a model"):
        fit(store=tmp_path / "out.zarr", overwrite=True)
    with pytest.raises(StoreFormatError, match="holds 'scores', not 'model'"):
        fxdask.load(tmp_path / "out.zarr")
    with pytest.raises(StoreExistsError, match="holds scores already"):
        fxdask.batch_score(clf, X, tmp_path / "out.zarr")
    fxdask.batch_score(clf, X, tmp_path / "out.zarr", overwrite=True)


def test_an_unfinished_store_does_not_load(tmp_path):
    fit(store=tmp_path / "model.zarr")
    unfinish(tmp_path / "model.zarr")
    with pytest.raises(StoreUnfinishedError, match="begun but never finished; run the same call again"):
        fxdask.load(tmp_path / "model.zarr")


def test_a_missing_chunk_is_an_error_not_zeros(tmp_path):
    store = tmp_path / "model.zarr"
    fit(store=store)
    (store / "selected" / "weights" / "c" / "0" / "0").unlink()
    with pytest.raises(StoreFormatError, match="damaged: selected/weights has 0 of its 1 chunks"):
        fxdask.load(store)


def test_another_stream_of_weights_is_refused(tmp_path):
    store = tmp_path / "model.zarr"
    fit(store=store)
    unfinish(store)
    canaries = zarr.open_group(store)["canaries"]
    canaries[:] = canaries[:] + 1
    with pytest.raises(WeightStreamError, match="draws other weights"):
        fit(store=store)


def test_too_little_disk_space(tmp_path):
    bytes_per_node = 4 * 4 + 2 * 25
    too_many = 2 * shutil.disk_usage(tmp_path).free // bytes_per_node
    with pytest.raises(DiskSpaceError, match=r"needs .*iB but the disk has .*iB free; free some room"):
        fit(store=tmp_path / "model.zarr", n_nodes=too_many)
    assert not (tmp_path / "model.zarr").exists()


def test_responses_need_the_training_data():
    clf = fit()
    with pytest.raises(InvalidInputError, match="need the training samples"):
        clf.responses(X[0])
    with pytest.raises(InvalidInputError, match="X_train is not what this model was fitted on"):
        clf.responses(X[0], X_train=X[::-1])
    with pytest.raises(InvalidInputError, match="nodes run from 0 to 49"):
        clf.weights([50])
