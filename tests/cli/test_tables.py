"""Parquet on the command line: columns of samples, labels and ids by name."""

import json

import numpy as np
import pandas as pd
import pytest
from command_line import run_here
from small import X, Y

import fxdask

NETWORK = ("--nodes", "50", "--selected", "3", "--quiet", "--json")


@pytest.fixture
def folder(tmp_path):
    frame = pd.DataFrame(X, columns=list("abcd")).assign(id=[f"row {i}" for i in range(40)], y=Y)
    frame.to_parquet(tmp_path / "train.parquet", row_group_size=9)
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", Y)
    return tmp_path


def test_fit_and_score_parquet_by_the_names_of_its_columns(folder):
    done = run_here(
        folder, "fit", "train.parquet", "--label-column", "y", "model.zarr", "--columns", "a,b,c,d", *NETWORK
    )
    assert done.returncode == 0, done.stderr
    clf = fxdask.load(folder / "model.zarr")
    assert clf.feature_names_in_.tolist() == list("abcd")
    expected = fxdask.FisherNetworkClassifier(50, 3).fit(X, Y)
    assert np.array_equal(clf.divergences_, expected.divergences_)
    words = ("score", "model.zarr", "train.parquet", "scored.parquet", "--id-columns", "id", "--label-column", "y")
    done = run_here(folder, *words, "--quiet", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["accuracy"] == expected.score(X, Y)
    scored = pd.read_parquet(folder / "scored.parquet")
    assert list(scored.columns) == ["id", "label", "score_0", "score_1"]
    assert np.array_equal(scored["label"], expected.predict(X))
    done = run_here(folder, "score", "model.zarr", "X.npy", "array.parquet", "--labels", "y.npy", "--quiet")
    assert done.returncode == 0, done.stderr


def test_a_report_takes_test_data_from_columns(folder):
    fxdask.FisherNetworkClassifier(50, 3, store=folder / "model.zarr").fit(X, Y)
    words = (
        "report",
        "model.zarr",
        "model.html",
        "--data",
        "train.parquet",
        "--columns",
        "a,b,c,d",
        "--quiet",
        "--json",
    )
    for labels in (("--label-column", "y"), ("--labels", "y.npy")):
        done = run_here(folder, *words, *labels)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["accuracy"] == fxdask.load(folder / "model.zarr").score(X, Y)


def test_labels_and_samples_may_come_from_different_files(folder):
    words = ("fit", "train.parquet", "y.npy", "model.zarr", "--columns", "a, b", *NETWORK)
    assert run_here(folder, *words).returncode == 0
    assert fxdask.load(folder / "model.zarr").feature_names_in_.tolist() == ["a", "b"]
    words = ("fit", "train.parquet", "model.zarr", "--labels", "y.npy", "--columns", "a, b", "--json", *NETWORK)
    again = run_here(folder, *words)
    assert json.loads(again.stdout)["already_done"] is True
    plan = run_here(folder, "fit", "train.parquet", "other.zarr", "--label-column", "y", "--columns", "a", "--dry-run")
    assert plan.returncode == 0
    assert not (folder / "other.zarr").exists()


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ("fit train.parquet --label-column y", 2, "Missing argument 'STORE'"),
        (
            "fit train.parquet model.zarr",
            2,
            "Missing argument 'STORE'; pass SAMPLES LABELS STORE, or SAMPLES STORE with",
        ),
        ("fit train.parquet y.npy model.zarr --label-column y", 2, "both give the labels; pass one of them"),
        ("fit train.parquet y.npy model.zarr --labels y.npy", 2, "LABELS (y.npy) and --labels both give the labels"),
        ("fit train.parquet model.zarr --labels y.npy --label-column y", 2, "--label-column both give the labels"),
        ("fit train.parquet --labels y.npy", 2, "Missing argument 'STORE'; pass SAMPLES STORE with --labels"),
        ("fit train.parquet model.zarr --label-column z", 2, "has no column 'z'; its columns are 'a', 'b'"),
        ("fit train.parquet model.zarr --label-column y --columns a,,b", 2, "has an empty name"),
        ("fit train.parquet model.zarr --label-column y --columns a,x", 2, "has no column 'x'"),
        ("fit train.parquet model.zarr --label-column y --columns a,y", 2, "--columns has the column y of the labels"),
        ("fit X.npy model.zarr --label-column y", 2, "--label-column chooses columns of Parquet, but X.npy is no"),
        (
            "fit X.npy y.npy model.zarr --columns a",
            2,
            "--columns chooses columns of Parquet, but X.npy is no Parquet file",
        ),
        ("fit train.parquet model.zarr --label-column y", 1, "do not hold numbers: 'id' (large_string); encode them"),
        ("score m.zarr train.parquet out.zarr --id-columns id", 2, "--id-columns needs a result of Parquet"),
        ("score m.zarr train.parquet out.zarr --labels y.npy --label-column y", 2, "both give the true labels"),
    ],
)
def test_wrong_words_are_refused_in_one_line(folder, words, status, message):
    done = run_here(folder, *words.split())
    assert message in done.stderr
    assert done.returncode == status
    assert not (folder / "model.zarr").exists()


@pytest.mark.parametrize("words", ["fit cut.parquet model.zarr", "rank cut.parquet"])
def test_a_table_that_cannot_be_read_is_no_usage_error(folder, words):
    (folder / "cut.parquet").write_bytes((folder / "train.parquet").read_bytes()[:200])
    done = run_here(folder, *words.split(), "--label-column", "y")
    assert done.returncode == 1
    assert "cut.parquet is not a readable Parquet file" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_help_shows_that_labels_may_be_left_out(folder):
    text = run_here(folder, "fit", "--help").stdout
    assert "SAMPLES [LABELS] STORE" in text
    assert "--label-column NAME" in text
    assert "--columns A,B,C" in text


@pytest.mark.parametrize("command", [("fit", "model.zarr"), ("rank",)])
def test_columns_that_are_no_features_are_left_out(folder, command):
    words = (command[0], "train.parquet", *command[1:], "--label-column", "y", "--without", "id,b", "--quiet", "--json")
    done = run_here(folder, *words)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["features"] == 3
    for wrong, message in (
        (("--without", "idd"), "has no column 'idd'"),
        (("--without", "id", "--columns", "a"), "--columns and --without both choose the features"),
    ):
        done = run_here(folder, command[0], "train.parquet", *command[1:], "--label-column", "y", *wrong, "--json")
        assert done.returncode == 2
        assert message in json.loads(done.stdout)["error"]
