"""``fxdask report``: its page, its output and its one-line errors."""

import json

import numpy as np
import pytest
import zarr
from command_line import run_here
from web_pages import Parts

import fxdask


@pytest.fixture(scope="module")
def folder(two_blobs, tmp_path_factory):
    X, y = two_blobs
    path = tmp_path_factory.mktemp("report")
    fxdask.FisherNetworkClassifier(100, 4, store=path / "model.zarr").fit(X[:160], y[:160])
    zarr.create_array(path / "test.zarr", data=X[160:], chunks=(30, 6))
    np.save(path / "truth.npy", y[160:])
    np.save(path / "narrow.npy", X[160:, :5])
    np.save(path / "few.npy", y[160:170])
    np.save(path / "names.npy", np.array(["a", "b"] * 40))
    (path / "mine.html").write_text("<p>mine</p>")
    return path


def test_the_page_of_a_model(folder):
    done = run_here(folder, "report", "model.zarr", "model.html", "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["report", "model.html"]
    parts = Parts((folder / "model.html").read_text(encoding="utf-8"))
    parts.assert_self_contained()
    assert "for 2 classes" in parts.text
    assert "On test data" not in parts.text


def test_the_page_with_test_data_and_its_numbers_as_json(folder, two_blobs):
    test = ("--data", "test.zarr", "--labels", "truth.npy")
    done = run_here(folder, "report", "model.zarr", *test, "tested.html", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found) == {"report", "samples", "accuracy", "log_loss", "calibration_error"}
    X, y = two_blobs
    accuracy = fxdask.load(folder / "model.zarr").score(X[160:], y[160:])
    assert (found["samples"], found["accuracy"]) == (80, accuracy)
    text = Parts((folder / "tested.html").read_text(encoding="utf-8")).text
    assert f"Of 80 test samples, it labels {100 * accuracy:.2f}% correctly." in text
    again = run_here(folder, "report", "model.zarr", *test, "tested.html")
    assert again.returncode == 0, "a report is replaced"


def test_labels_of_other_classes_have_no_log_loss(folder):
    np.save(folder / "others.npy", np.full(80, 7))
    done = run_here(
        folder, "report", "model.zarr", "others.html", "--data", "test.zarr", "--labels", "others.npy", "--json"
    )
    assert json.loads(done.stdout)["log_loss"] is None


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("model.zarr",), 2, "Missing argument 'OUT'"),
        (("model.zarr", "a.html", "--data", "test.zarr"), 2, "--data was given without --labels or --label-column;"),
        (("model.zarr", "a.html", "--labels", "truth.npy"), 2, "--labels was given without --data"),
        (("model.zarr", "a.html", "--label-column", "y"), 2, "--label-column was given without --data"),
        (("model.zarr", "a.html", "--columns", "a,b"), 2, "--columns was given without --data"),
        (
            ("model.zarr", "a.html", "--data", "test.zarr", "--labels", "truth.npy", "--label-column", "y"),
            2,
            "--labels and --label-column both give the true labels",
        ),
        (
            ("model.zarr", "a.html", "--data", "test.zarr", "--label-column", "y"),
            2,
            "--label-column chooses columns of Parquet, but test.zarr is no Parquet file and no folder of such files",
        ),
        (("nowhere.zarr", "a.html"), 1, "error: there is no fxdask store at"),
        (
            ("model.zarr", "a.html", "--data", "narrow.npy", "--labels", "truth.npy"),
            1,
            "error: X has 5 features, but FisherNetworkClassifier is expecting 6 features as input",
        ),
        (
            ("model.zarr", "a.html", "--data", "test.zarr", "--labels", "few.npy"),
            1,
            "error: y has 10 labels but X has 80 samples; pass one label per sample",
        ),
        (
            ("model.zarr", "a.html", "--data", "test.zarr", "--labels", "names.npy"),
            1,
            "error: y has dtype <U1 but the model's classes have int64",
        ),
        (
            ("model.zarr", "a.html", "--data", "gone.zarr", "--labels", "truth.npy"),
            1,
            "error: there is no file or folder gone.zarr",
        ),
        (("model.zarr", "nowhere/a.html"), 1, "error: no report can be written to nowhere/a.html: its folder does not"),
        (("model.zarr", "mine.html"), 1, "error: mine.html exists and is not a report of fxdask; choose another path"),
    ],
)
def test_errors_are_printed_in_one_line(folder, arguments, status, message):
    done = run_here(folder, "report", *arguments)
    assert done.returncode == status
    assert message in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    if status == 1:
        assert done.stderr.count("\n") == 1
    assert not (folder / "a.html").exists()
    assert (folder / "mine.html").read_text() == "<p>mine</p>"
