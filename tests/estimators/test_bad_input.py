"""Invalid samples, labels and parameters are refused in one sentence."""

import dask
import dask.array as da
import fsspec
import numpy as np
import pandas as pd
import pytest
import zarr
from sklearn.exceptions import NotFittedError
from small import X, Y, fit, one_sentence, with_value

import fxdask
from fxdask import FisherNetworkClassifier
from fxdask.errors import (
    InvalidInputError,
    StoreExistsError,
    ZeroSpreadWarning,
)


@pytest.mark.parametrize(("value", "word"), [(np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity")])
@pytest.mark.parametrize("kind", ["numpy", "dask", "zarr", "npy"])
def test_nan_and_infinity_are_refused_at_fit(value, word, kind, tmp_path):
    invalid = with_value(value)
    np.save(tmp_path / "X.npy", invalid)
    zarr.create_array(tmp_path / "X.zarr", data=invalid, chunks=(8, 4))
    data = {
        "numpy": invalid,
        "dask": da.from_array(invalid, chunks=(8, 2)),
        "zarr": tmp_path / "X.zarr",
        "npy": tmp_path / "X.npy",
    }[kind]
    store = tmp_path / "model.zarr"
    with pytest.raises(InvalidInputError, match=f"contains {word}, first in sample 31, feature 2") as error:
        fit(data, store=store)
    one_sentence(error)
    assert not store.exists()


def test_nothing_is_written_after_the_error(tmp_path):
    """The first chunk is invalid, while other threads still write the other chunks."""
    wide = np.random.default_rng(1).standard_normal((6_000, 2_000)).astype(np.float32)
    clf = fit(wide[:40])
    wide[0, 0] = np.nan
    data = da.from_array(wide, chunks=(1_536, 2_000))
    for _ in range(10):
        with dask.config.set(num_workers=4), pytest.raises(InvalidInputError, match="NaN, first in sample 0"):
            fxdask.batch_score(clf, data, tmp_path / "out.zarr")
        assert list(tmp_path.iterdir()) == []


def test_samples_that_become_invalid_after_they_were_copied_are_not_read_again(tmp_path):
    reads = []

    def valid_once(block):
        reads.append(1)
        return block if len(reads) == 1 else np.full_like(block, np.nan)

    data = da.from_array(X, chunks=(40, 4)).map_blocks(valid_once, dtype=X.dtype, meta=X[:0])
    clf = fit(data, store=tmp_path / "model.zarr")
    assert len(reads) == 1
    assert np.array_equal(clf.divergences_, fit().divergences_)


def test_nan_is_refused_at_predict():
    clf = fit()
    for data in (with_value(np.nan), da.from_array(with_value(np.nan), chunks=(20, 4))):
        with pytest.raises(InvalidInputError, match="NaN, first in sample 31, feature 2") as error:
            np.asarray(clf.predict(data))
        one_sentence(error)


def test_labels_of_another_length_are_refused():
    with pytest.raises(InvalidInputError, match="y has 39 labels but X has 40 samples"):
        fit(y=Y[:39])


def test_one_class_is_refused():
    with pytest.raises(InvalidInputError, match="y has one class only"):
        fit(y=np.zeros(40))


def test_a_class_of_one_sample_is_refused():
    y = Y.copy()
    y[7] = 5
    with pytest.raises(InvalidInputError, match="class 5 has 1 sample but a spread needs at least 2"):
        fit(y=y)


def test_labels_that_are_not_classes_are_refused():
    with pytest.raises(ValueError, match="Unknown label type"):
        fit(y=X[:, 0])
    with pytest.raises(ValueError, match="y contains NaN"):
        fit(y=np.where(Y, np.nan, 1.0))
    with pytest.raises(ValueError, match="y is None"):
        fit(y=None)


@pytest.mark.parametrize("kind", ["numpy", "dask"])
def test_another_number_of_features_is_refused_at_predict(kind, tmp_path):
    clf = fit()
    data = X[:, :3] if kind == "numpy" else da.from_array(X[:, :3])
    with pytest.raises(ValueError, match="X has 3 features, but FisherNetworkClassifier is expecting 4 features"):
        clf.predict(data)
    with pytest.raises(ValueError, match="X has 3 features"):
        fxdask.batch_score(clf, data, tmp_path / "out.zarr")
    assert not (tmp_path / "out.zarr").exists()


def test_more_selected_nodes_than_nodes_are_refused():
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
        ({"bandwidth": 1e-155}, "bandwidth must be above 0, from 1e-100 to 1e+100"),
        ({"bandwidth": 10**400}, "bandwidth must be above 0"),
        ({"nodes_per_block": np.array([5, 6])}, "nodes_per_block must be a whole number"),
        ({"pool_size": np.array([5, 6])}, 'pool_size must be a whole number of at least 1 or "auto", not array'),
        ({"pool_size": "all"}, "pool_size must be a whole number of at least 1 or \"auto\", not 'all'"),
        (
            {"selection": "joint", "pool_size": 2, "n_selected": 3},
            "pool_size is 2 but 3 nodes of each class are to be selected",
        ),
        ({"bandwidth_spread": "x"}, "bandwidth_spread='x' is not known"),
        ({"combine": "mean"}, "'sum', 'scaled', 'log', 'joint'"),
        ({"selection": "best"}, "selection='best' is not known; choose one of 'top', 'joint'"),
        ({"normalize": "row"}, "None, 'sample', 'feature'"),
        ({"keep_projections": "none"}, "'selected', 'all'"),
        ({"keep_projections": "all"}, "needs a store"),
        ({"keep_weights": True}, "keep_weights=True needs a store"),
        ({"keep_weights": "yes"}, "keep_weights must be True or False, not 'yes'"),
        ({"memory_limit": "a lot"}, "a number of bytes or a text such as \"2 GiB\", not 'a lot'"),
        ({"memory_limit": 0}, "memory_limit must be a number of bytes"),
        ({"memory_limit": True}, "memory_limit must be a number of bytes"),
        ({"priors": "uniform"}, "'class_share', 'equal' or an array"),
        ({"priors": [1, 2, 3]}, "priors has 3 values but y has 2 classes"),
        ({"priors": [1, 0]}, "above 0"),
        ({"priors": [1e-300, 1e300]}, r"priors run from 1e-300 to 1e+300, but the largest may be at most 1e+100 times"),
        ({"priors": [1e-320, 1]}, "raise the smallest, or remove its class"),
        ({"n_nodes": 0}, "n_nodes must be a whole number of at least 1, not 0"),
        ({"n_nodes": 2.5}, "n_nodes must be a whole number"),
        ({"n_selected": True}, "n_selected must be a whole number"),
        ({"nodes_per_block": "many"}, "nodes_per_block must be a whole number"),
        ({"random_state": -3}, "random_state must be 0 or more"),
    ],
)
def test_invalid_parameters_are_refused(parameters, message):
    with pytest.raises(InvalidInputError) as error:
        fit(**parameters)
    assert message in one_sentence(error)


@pytest.mark.parametrize("samples", [None, 3.5, "text.npy"])
def test_no_array_is_refused(samples):
    for call in (fit, fit().predict, fit().score_samples):
        with pytest.raises(
            InvalidInputError, match="X has 0 dimensions but needs 2|there is no file or folder"
        ) as error:
            call(samples)
        one_sentence(error)


def test_unknown_chunk_sizes_are_refused():
    lazy = da.from_array(X)
    unknown = lazy[lazy[:, 0] > -100]
    with pytest.raises(InvalidInputError, match=r"unknown chunk sizes; call X.compute_chunk_sizes\(\) first"):
        fit(unknown)
    with pytest.raises(InvalidInputError, match="unknown chunk sizes"):
        fit().predict(unknown)


@pytest.mark.parametrize("kind", ["numpy", "dask"])
def test_complex_numbers_and_strings_are_refused(kind):
    wrap = (lambda array: da.from_array(array, chunks=(20, 4))) if kind == "dask" else np.asarray
    with pytest.raises(InvalidInputError, match="Complex data not supported") as error:
        fit(wrap(X + 1j))
    one_sentence(error)
    for strings in (np.full((40, 4), "word", dtype=object), np.full((40, 4), "word")):
        with pytest.raises(InvalidInputError, match="could not convert string|does not hold numbers|strings") as error:
            fit(wrap(strings))
        one_sentence(error)


def test_arrays_without_two_dimensions_or_features_are_refused():
    for flat in (da.from_array(X[:, 0]), X[:, 0], X[:, 0].tolist()):
        with pytest.raises(InvalidInputError, match="Expected 2D array: X has 1 dimensions") as error:
            fit(flat)
        one_sentence(error)
    with pytest.raises(ValueError, match=r"0 feature\(s\)"):
        fit(da.zeros((40, 0)))


def test_masked_values_are_refused():
    with pytest.raises(InvalidInputError, match="X has masked values"):
        fit(np.ma.masked_greater(X, 1.0))


def test_values_whose_projections_overflow_float32_are_refused():
    with pytest.raises(InvalidInputError, match="projections overflow float32; scale X down"):
        fit(X * 1e200)
    with pytest.raises(InvalidInputError, match="projections overflow float32; scale X down"):
        fit(X * 1e200, normalize="feature")
    large, plain = fit(X * 1e100, normalize="feature"), fit(X, normalize="feature")
    assert np.array_equal(large.selected_nodes_, plain.selected_nodes_)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no numbers here", "not a readable .npy file"),
        (None, "there is no file or folder"),
        ("short", "is truncated: it has"),
        ("objects", "holds Python objects"),
        ("fortran", "Fortran order"),
    ],
)
def test_unreadable_files_are_refused(content, message, tmp_path):
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


def test_a_folder_without_an_array_is_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="there is no Zarr array at"):
        fit(tmp_path)


def test_other_data_at_a_url_is_never_overwritten(tmp_path):
    memory = fsspec.filesystem("memory")
    memory.pipe("/letters/dear.txt", b"hello")
    zarr.create_array("memory://numbers", data=X)
    for url in ("memory://letters", "memory://numbers"):
        with pytest.raises(StoreExistsError, match="not an fxdask store; choose another path"):
            fit(store=url)
    assert memory.cat("/letters/dear.txt") == b"hello"
    assert np.array_equal(zarr.open_array("memory://numbers")[:], X)
    with pytest.raises(InvalidInputError, match="no node separates class"):
        fit(np.ones((40, 4)), store="memory://model")
    made = fit(store="memory://model")
    assert np.array_equal(fxdask.load("memory://model").predict(X), made.predict(X))
    by_file_url = fit(store=f"file://{tmp_path}/model.zarr")
    assert by_file_url.store_ == f"{tmp_path}/model.zarr"


def test_a_failed_fit_does_not_change_the_estimator():
    clf = FisherNetworkClassifier(50, 3)
    with pytest.raises(InvalidInputError):
        clf.fit(with_value(np.nan), Y)
    with pytest.raises(NotFittedError):
        clf.predict(X)
    with pytest.raises(NotFittedError):
        fxdask.batch_score(clf, X, "nowhere.zarr")
    before = clf.fit(X, Y).predict(X)
    with pytest.raises(InvalidInputError):
        clf.fit(with_value(np.nan)[:, :3], Y)
    assert np.array_equal(clf.predict(X), before)


def test_other_feature_names_are_refused(tmp_path):
    frame = pd.DataFrame(X, columns=list("abcd"))
    clf = fit(frame)
    with pytest.raises(ValueError, match="feature names should match"):
        clf.predict(frame[list("dcba")])
    with pytest.raises(InvalidInputError, match="feature names should match"):
        fxdask.batch_score(clf, frame[list("dcba")], tmp_path / "out.zarr")


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (
            np.array(["2020-01-01", "2021-01-01"] * 20, dtype="datetime64[D]"),
            "labels must be numbers, booleans or strings",
        ),
        (np.array([None, "a"] * 20, dtype=object), "mixes types of labels"),
        (np.array([1, "a"] * 20, dtype=object), "mixes types of labels"),
        (np.array([np.nan, 1.0] * 20, dtype=object), "y contains NaN"),
    ],
)
def test_labels_of_unsupported_types_are_refused(y, message):
    with pytest.raises(InvalidInputError, match=message):
        fit(y=y)


def test_labels_are_read_from_files(tmp_path):
    words = np.array(["ash", "birch"])[Y]
    array = zarr.create_array(tmp_path / "words.zarr", shape=(40,), dtype="string")
    array[:] = words.astype(object)
    assert fit(y=tmp_path / "words.zarr").classes_.tolist() == ["ash", "birch"]
    np.save(tmp_path / "one.npy", np.int64(3))
    with pytest.raises(InvalidInputError, match=r"has shape \(\) but needs 1 dimension; save one label per sample"):
        fit(y=tmp_path / "one.npy")


def test_far_outliers_get_a_label_and_no_nan():
    clf = FisherNetworkClassifier(200, 5).fit(X * np.where(Y, 5, 1)[:, None], Y)
    for size in (1e10, 1e38, 1e39, 1e300):
        far = np.array([[size, 0, 0, 0], [0, -size, size, 0]])
        for method in (clf.predict_proba, clf.predict_log_proba, clf.decision_function):
            assert np.isfinite(method(far)).all()
        assert clf.predict(far).tolist() == [1, 1], "the wider class"


@pytest.mark.parametrize("store", [False, True])
@pytest.mark.parametrize(("rows", "dtype"), [(19, "f8"), (21, "f8"), (20, "f4")])
def test_dask_arrays_that_differ_from_their_declaration_are_refused(rows, dtype, store, tmp_path):
    first = da.from_delayed(dask.delayed(lambda: X[:rows].astype(dtype))(), shape=(20, 4), dtype="f8")
    wrong = da.concatenate([first, da.from_array(X[20:], chunks=(20, 4))])
    # Without a store NumPy concatenates the chunks, which would hide the wrong dtype.
    if not store and dtype == "f4":
        wrong = first
    with pytest.raises(InvalidInputError, match="Dask array that declares float64 of shape .* but a chunk has"):
        fit(wrong, Y[: len(wrong)], store=tmp_path / "m" if store else None)
    assert list(tmp_path.iterdir()) == []


def test_a_class_of_equal_samples_causes_a_warning():
    equal = X.copy()
    equal[Y == 1] = equal[1]
    with pytest.warns(ZeroSpreadWarning, match="class 1 counts as constant at 50 of 50 nodes; check whether"):
        fit(equal)


def test_true_labels_of_another_type_are_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="so no label can match"):
        fxdask.batch_score(fit(), X, tmp_path / "out", Y.astype(str))
    assert list(tmp_path.iterdir()) == []


def test_masked_labels_and_empty_samples_are_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="y has masked values"):
        fit(y=np.ma.masked_equal(Y, 1))
    np.save(tmp_path / "none.npy", X[:0])
    for nothing in (da.from_array(X[:0]), tmp_path / "none.npy"):
        with pytest.raises(InvalidInputError, match="X has no samples"):
            fit(nothing, [])


def test_responses_refuse_other_feature_names():
    frame = pd.DataFrame(X, columns=list("abcd"))
    clf = fit(frame)
    assert clf.responses(frame[:2], X_train=frame).shape == (2, 2, 50)
    with pytest.raises(InvalidInputError, match="feature names should match"):
        clf.responses(frame[list("dcba")][:2], X_train=frame)


def test_responses_and_weights_refuse_invalid_arguments():
    clf = fit()
    with pytest.raises(InvalidInputError, match="need the training samples"):
        clf.responses(X[0])
    with pytest.raises(InvalidInputError, match="X_train differs from the samples of the fit"):
        clf.responses(X[0], X_train=X[::-1])
    with pytest.raises(InvalidInputError, match="nodes run from 0 to 49"):
        clf.weights([50])
