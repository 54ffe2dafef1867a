"""``fxdask rank``: tables and pages from files, and errors of one line."""

import json

import numpy as np
import pandas as pd
import pytest
from command_line import run_here
from small import X, Y

import fxdask


@pytest.fixture
def folder(tmp_path):
    frame = pd.DataFrame(X, columns=list("abcd")).assign(id=[f"row {i}" for i in range(40)], y=Y)
    frame.loc[3, "b"] = np.nan
    frame.to_parquet(tmp_path / "train.parquet", row_group_size=9)
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", Y)
    return tmp_path


def test_arrays_are_ranked_into_a_table_a_page_and_a_store(folder):
    words = ("--criteria", "fisher,pearson", "--out", "r.parquet", "--html", "r.html", "--store", "r.zarr")
    done = run_here(folder, "rank", "X.npy", "--labels", "y.npy", *words, "--quiet", "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    expected = fxdask.rank_features(X, Y, ["fisher", "pearson"])
    assert [row["feature"] for row in facts["fisher"]] == expected.names[expected.order("fisher")].tolist()
    assert facts["pearson"][0]["p_value"] == expected.p_value("pearson").min()
    pd.testing.assert_frame_equal(pd.read_parquet(folder / "r.parquet"), expected.to_frame(), check_dtype=False)
    assert "By pearson" in (folder / "r.html").read_text()
    assert run_here(folder, "verify", "r.zarr").returncode == 0
    text = run_here(folder, "rank", "X.npy", "--labels", "y.npy", "--out", "r.csv", "--quiet").stdout
    assert "kolmogorov smirnov" in text
    assert len(pd.read_csv(folder / "r.csv")) == 4


def test_columns_of_parquet_are_ranked(folder):
    words = ("rank", "train.parquet", "--label-column", "y", "--missing", "omit", "--quiet", "--json")
    done = run_here(folder, *words, "--columns", "a,b")
    assert json.loads(done.stdout)["missing_values"] == 1
    done = run_here(folder, *words, "--numeric-only")
    assert json.loads(done.stdout)["features"] == 4


def test_priors_are_chosen(folder):
    words = ("rank", "X.npy", "--labels", "y.npy", "--criteria", "extended_fisher", "--store", "r.zarr", "--quiet")
    done = run_here(folder, *words, "--priors", "equal")
    assert done.returncode == 0, done.stderr
    refused = run_here(folder, *words)
    assert "priors" in refused.stderr


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ("rank X.npy", 2, "Pass the labels by one of --labels and --label-column"),
        ("rank X.npy --labels y.npy --criteria gini", 2, "--criteria has 'gini', which is not one of"),
        ("rank X.npy --labels y.npy --out r.xlsx", 2, "neither .parquet nor .csv"),
        ("rank X.npy --labels y.npy --html nowhere/r.html", 1, "its folder does not exist"),
        ("rank X.npy --labels y.npy --out nowhere/r.csv", 1, "no table can be written to nowhere/r.csv: its folder"),
        ("rank X.npy --labels y.npy --out s3://bucket/r.csv", 1, "it is a URL, and only local files are written"),
        ("rank train.parquet --label-column y --out train.parquet", 1, "exists and is not the table of a ranking"),
        ("rank train.parquet --label-column y", 1, "'id' (string); encode them as numbers"),
        ("rank train.parquet --label-column y --numeric-only", 1, "contains NaN, first in sample 3, column 'b'"),
    ],
)
def test_errors_have_one_line(folder, words, status, message):
    done = run_here(folder, *words.split())
    assert done.returncode == status
    assert message in done.stderr.replace("large_string", "string")
