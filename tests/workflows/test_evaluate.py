"""Evaluation of test samples: every form of X gives the same numbers, from counts alone."""

import tracemalloc

import dask.array as da
import numpy as np
import oracles
import pytest
import zarr
from sklearn.metrics import confusion_matrix, log_loss
from small import one_sentence

from fxdask import FisherNetworkClassifier
from fxdask.errors import InvalidInputError, MemoryPlanError
from fxdask.tasks.evaluate import EvaluationJob, evaluate_rows
from fxdask.workflows.evaluate import checked_test_data, evaluate_model


@pytest.fixture(scope="module")
def fitted(three_blobs):
    X, y = three_blobs
    return FisherNetworkClassifier(100, 3, combine="log").fit(X[::2], y[::2])


def evaluated(clf, X, y, **options):
    model = clf._fitted_model()
    return evaluate_model(model, checked_test_data(model, X, y), **options)


def test_the_numbers_equal_those_of_scikit_learn_and_of_loops(fitted, three_blobs):
    X, y = three_blobs
    found = evaluated(fitted, X, y)
    assert found.n_samples == 300
    assert found.accuracy == fitted.score(X, y)
    assert np.array_equal(found.confusion, confusion_matrix(y, fitted.predict(X), labels=fitted.classes_))
    assert found.log_loss == pytest.approx(log_loss(y, fitted.predict_proba(X)), abs=1e-8)
    expected = oracles.evaluation(
        (fitted.decision_function(X) / fitted.temperature_).tolist(), y.tolist(), fitted.classes_.tolist()
    )
    assert found.accuracy == expected["accuracy"]
    assert found.log_loss == pytest.approx(expected["log_loss"], abs=1e-8)
    assert found.calibration_error == pytest.approx(expected["calibration_error"], abs=1e-8)


def test_every_form_of_the_samples_gives_the_same_counts(wide, tmp_path):
    """The fixture makes one task of each chunk."""
    model, X, y = wide
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    expected = evaluated(model, X, y)
    for form, labels in (
        (tmp_path / "X.zarr", y.tolist()),
        (str(tmp_path / "X.npy"), tmp_path / "y.npy"),
        (zarr.open_array(tmp_path / "X.zarr", mode="r"), zarr.create_array(tmp_path / "y.zarr", data=y)),
        (da.from_array(X, chunks=(999, 7)), da.from_array(y, chunks=77)),
    ):
        found = evaluated(model, form, labels)
        assert np.array_equal(found.confusion, expected.confusion)
        assert found.counts.loss == expected.counts.loss
        assert np.array_equal(found.counts.probability_in_bin, expected.counts.probability_in_bin)
        assert np.array_equal(found.counts.scores_wrong.values, expected.counts.scores_wrong.values)
        assert np.array_equal(found.counts.scores_correct.counts, expected.counts.scores_correct.counts)


def test_unknown_labels_count_as_wrong_and_have_no_log_loss(fitted, three_blobs):
    X, y = three_blobs
    renamed = np.where(np.arange(300) < 30, "oak", y)
    found = evaluated(fitted, X, renamed)
    assert found.labels.tolist() == ["ash", "birch", "cedar", "oak"]
    assert found.confusion.shape == (4, 3)
    assert found.n_unknown == 30
    assert found.accuracy == np.mean(fitted.predict(X) == renamed)
    assert found.log_loss == pytest.approx(log_loss(y[30:], fitted.predict_proba(X[30:])), abs=1e-8)
    only_unknown = evaluated(fitted, X[:5], ["oak"] * 5)
    assert only_unknown.accuracy == 0
    assert np.isnan(only_unknown.log_loss)


def test_outlier_scores_are_those_of_all_classes_together(fitted, three_blobs):
    X, y = three_blobs
    counts = evaluated(fitted, X, y).counts
    kept = [np.repeat(part.values, part.counts) for part in (counts.scores_correct, counts.scores_wrong)]
    scores = np.logaddexp.reduce(fitted.decision_function(X), axis=1)
    right = fitted.predict(X) == y
    np.testing.assert_allclose(kept[0], np.sort(scores[right]), rtol=2**-14)
    np.testing.assert_allclose(kept[1], np.sort(scores[~right]), rtol=2**-14)


def test_the_memory_of_a_task_does_not_grow_with_its_samples(fitted):
    few, many = 150_000, 600_000
    X = np.random.default_rng(0).standard_normal((many, 5)).astype(np.float32)
    truth = np.zeros(many, np.uint8)
    job = EvaluationJob(fitted._fitted_model().scorer, np.arange(3), 3, 1.0)
    evaluate_rows(job, X, truth, 0, few)  # makes the tables and buffers
    peaks = []
    for n_samples in (few, many):
        tracemalloc.start()
        try:
            assert evaluate_rows(job, X, truth, 0, n_samples).in_bin.sum() == n_samples
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] - peaks[0] < 0.2 * (many - few) * 3 * 8, "a fifth of the additional scores"


def test_samples_that_do_not_fit_into_memory_are_refused(fitted, three_blobs):
    with pytest.raises(MemoryPlanError, match="needs .* but a task may use"):
        evaluated(fitted, *three_blobs, memory_limit="10 MiB")


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (np.zeros((3, 5)), None, "test data needs samples and labels, but only samples X were passed; pass y too"),
        (None, ["ash"], "test data needs samples and labels, but only labels y were passed; pass X too"),
        (np.zeros((3, 4)), ["ash"] * 3, "X has 4 features, but FisherNetworkClassifier is expecting 5 features"),
        (np.zeros((3, 5)), ["ash"] * 2, "y has 2 labels but X has 3 samples; pass one label per sample"),
        (np.zeros((3, 5)), [0, 1, 2], "y has dtype int64 but the model's classes have <U5"),
        (da.zeros((0, 5)), [], "X has 0 samples but test data needs at least 1"),
        (np.full((3, 5), np.nan), ["ash"] * 3, "Input X contains NaN, first in sample 0, feature 0"),
        ("nowhere.npy", ["ash"], "there is no file or folder nowhere.npy"),
    ],
)
def test_invalid_test_data_is_refused_in_one_sentence(fitted, X, y, message):
    with pytest.raises(InvalidInputError, match=message) as error:
        evaluated(fitted, X, y)
    one_sentence(error)


def test_no_test_data_is_allowed(fitted):
    assert checked_test_data(fitted._fitted_model(), None, None) is None
