"""The paper's experiment: interrupted and repeated runs, and the folder of its results."""

import json
import os
import shutil
import signal
import time

import numpy as np
import pytest
from experiment.small_runs import PAIRS, small
from processes import PythonProcess

import fxdask
from fxdask.errors import InvalidInputError, StoreExistsError
from fxdask.store.lease import exclusive_lease


def pairs_done(out):
    """Number of evaluated pairs by seed, from the counters of the processes."""
    seeds = json.loads((out / "results.json").read_text())["seeds"]
    return {seed: sum(work["pairs"] for work in of_seed["processes"].values()) for seed, of_seed in seeds.items()}


def test_more_seeds_and_pairs_are_added_to_existing_results(folder, result, tmp_path):
    out = tmp_path / "out"
    small(folder, out=out, seeds=1, pairs=PAIRS[:1])
    before = json.loads((out / "results.json").read_text())["seeds"]["0"]
    small(folder, out=out, seeds=1, pairs=PAIRS[:1])
    assert json.loads((out / "results.json").read_text())["seeds"]["0"] == before  # nothing was computed again
    whole = small(folder, out=out)
    for criterion, accuracy in result.accuracy.items():
        assert np.array_equal(whole.accuracy[criterion], accuracy)
    assert pairs_done(out) == {"0": len(PAIRS), "1": len(PAIRS)}
    small(folder, out=out, seeds=[1], pairs=PAIRS[:1])  # fewer pairs and seeds remove nothing
    assert len((out / "results.csv").read_text().splitlines()) == 1 + len(PAIRS) * 2 * 2


def test_a_killed_run_resumes_with_the_next_seed(folder, result, tmp_path):
    out = tmp_path / "out"
    words = ["reproduce", "mnist", "--data", folder, "--out", out, "--nodes", 60, "--selected", 3]
    run = PythonProcess("-m", "fxdask", *words, "--pairs", "0-1,3-8,4-9", "--quiet", "--seeds", 2000)
    deadline = time.monotonic() + 60
    while not (out / "results.json").exists() or len(json.loads((out / "results.json").read_text())["seeds"]) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    before = json.loads((out / "results.json").read_text())["seeds"]
    whole = small(folder, out=out, seeds=2)
    after = json.loads((out / "results.json").read_text())["seeds"]
    assert after["0"] == before["0"]
    assert after["1"] == before["1"]
    for criterion, accuracy in result.accuracy.items():
        assert np.array_equal(whole.accuracy[criterion], accuracy)


def test_an_interrupted_seed_keeps_its_blocks(folder, result, tmp_path, monkeypatch):
    out = tmp_path / "out"

    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fxdask.experiment.runner.evaluate_pairs", stop)
        with pytest.raises(KeyboardInterrupt):
            small(folder, out=out, nodes_per_block=20)
    assert (out / ".fxdask-work" / "seed-0.zarr").is_dir()
    whole = small(folder, out=out)
    work = json.loads((out / "results.json").read_text())["seeds"]
    assert sum(done["blocks"] for done in work["0"]["processes"].values()) == 0
    assert sum(done["blocks"] for done in work["1"]["processes"].values()) > 0
    assert not (out / ".fxdask-work").exists()
    for criterion, accuracy in result.accuracy.items():
        assert np.array_equal(whole.accuracy[criterion], accuracy)


def test_other_results_are_replaced_only_with_overwrite(folder, tmp_path):
    out = tmp_path / "out"
    small(folder, out=out, seeds=1)
    with pytest.raises(StoreExistsError, match=r"holds results of n_nodes=60 instead of 50; choose another folder"):
        small(folder, out=out, seeds=1, n_nodes=50)
    with pytest.raises(StoreExistsError, match=r"results of projection='gaussian' instead of 'structured'; choose"):
        small(folder, out=out, seeds=1, projection="structured")
    with pytest.raises(StoreExistsError, match="mean_shift=True instead of False"):
        small(folder, out=out, seeds=1, mean_shift=False)
    with pytest.raises(StoreExistsError, match="dataset='mnist' instead of 'digits', other images"):
        fxdask.reproduce("digits", seeds=1, pairs=PAIRS, n_nodes=60, n_selected=3, out=out)
    fresh = small(folder, out=out, seeds=1, n_nodes=50, overwrite=True)
    assert fresh.results.identity["n_nodes"] == 50
    assert len(fresh._example.ratios) == 50


@pytest.mark.parametrize("where", ["evaluate_pairs", "make_example"])
def test_an_interrupted_experiment_can_be_replaced_by_another(folder, tmp_path, monkeypatch, where):
    out = tmp_path / "out"

    def stop(*_, **__):
        raise KeyboardInterrupt

    small(folder, out=out, seeds=1)
    for n_nodes in (50, 40):
        with monkeypatch.context() as patch:
            patch.setattr(f"fxdask.experiment.runner.{where}", stop)
            with pytest.raises(KeyboardInterrupt):
                small(folder, out=out, seeds=1, n_nodes=n_nodes, overwrite=True)
        assert not (out / "results.csv").exists()
    got = small(folder, out=out, seeds=1, n_nodes=40)
    want = small(folder, seeds=1, n_nodes=40)
    assert len(got._example.ratios) == 40
    for criterion, accuracy in want.accuracy.items():
        assert np.array_equal(got.accuracy[criterion], accuracy)


def test_a_partial_results_file_is_removed(folder, tmp_path):
    (tmp_path / ".results.json.begun").write_text("{")
    small(folder, out=tmp_path, seeds=1)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["example.npz", "results.csv", "results.json"]


def test_a_symbolic_link_and_its_folder_share_a_lease(folder, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to("out")
    with (
        exclusive_lease(str(tmp_path / "out" / "results.json")),
        pytest.raises(StoreExistsError, match="another call is working on"),
    ):
        small(folder, out=tmp_path / "link", seeds=1)


@pytest.fixture(scope="module")
def one_seed(folder, tmp_path_factory):
    """The folder of a finished run, to be copied."""
    out = tmp_path_factory.mktemp("finished") / "out"
    small(folder, out=out, seeds=1)
    return out


@pytest.mark.parametrize("name", ["divergences", "responses", "seed", "densities_0"])
def test_an_example_of_another_shape_is_computed_again(folder, one_seed, tmp_path, name):
    out = shutil.copytree(one_seed, tmp_path / "out")
    with np.load(out / "example.npz") as stored:
        arrays = dict(stored)
    np.savez(out / "example.npz", **arrays | {name: np.zeros((3, 3))})
    small(folder, out=out, seeds=1)
    with np.load(out / "example.npz") as stored:
        assert {part: values.tobytes() for part, values in stored.items()} == {
            part: values.tobytes() for part, values in arrays.items()
        }


def test_overwrite_keeps_results_of_the_same_experiment(folder, tmp_path):
    out = tmp_path / "out"
    small(folder, out=out, seeds=1)
    before = json.loads((out / "results.json").read_text())["seeds"]
    small(folder, out=out, seeds=1, overwrite=True)
    assert json.loads((out / "results.json").read_text())["seeds"] == before


def test_a_folder_of_other_files_is_refused(folder, tmp_path):
    (tmp_path / "results.csv").write_text("mine")
    with pytest.raises(StoreExistsError, match="holds other files; choose a new or empty folder"):
        small(folder, out=tmp_path, seeds=1)
    assert [file.name for file in tmp_path.iterdir()] == ["results.csv"]
    with pytest.raises(InvalidInputError, match=r"results.csv is a file; pass a folder as out"):
        small(folder, out=tmp_path / "results.csv", seeds=1)


def test_the_next_call_removes_an_old_work_folder(folder, tmp_path):
    out = tmp_path / "out"
    small(folder, out=out, seeds=1)
    for seeds in (1, 2):
        (out / ".fxdask-work").mkdir()
        (out / ".fxdask-work" / "old").write_text("old")
        small(folder, out=out, seeds=seeds)
        assert not (out / ".fxdask-work").exists()


def test_a_damaged_example_is_computed_again(folder, tmp_path):
    small(folder, out=tmp_path, seeds=1)
    whole = (tmp_path / "example.npz").read_bytes()
    (tmp_path / "example.npz").write_bytes(whole[: len(whole) // 2])
    small(folder, out=tmp_path, seeds=1)
    assert len(np.load(tmp_path / "example.npz")["ratios"]) == 60


def test_a_second_call_into_the_same_folder_is_refused(folder, tmp_path):
    words = ["reproduce", "mnist", "--data", folder, "--out", tmp_path / "out", "--nodes", 60, "--selected", 3]
    run = PythonProcess("-m", "fxdask", *words, "--seeds", 2000, "--quiet")
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "out" / ".fxdask-work").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        with pytest.raises(StoreExistsError, match="another call is working on"):
            small(folder, out=tmp_path / "out")
    finally:
        run.kill()
        run.wait()
