"""The paper's experiment: the same numbers as its definition gives, whoever does the work and however often."""

import csv
import json
import os
import signal
import subprocess
import sys
import time

import dask
import numpy as np
import oracles
import pytest
from command_line import run_here
from distributed import Client
from idx_files import write_idx_folder
from scipy.stats import ttest_1samp
from sklearn.datasets import load_digits

import fxdask
from fxdask.errors import ClusterError, InvalidInputError, StoreExistsError, StoreFormatError
from fxdask.experiment.results import published_figures
from fxdask.experiment.shifts import mean_differences
from fxdask.kernels.weights import weight_rows
from fxdask.store.lease import exclusive_lease

PAIRS = [(0, 1), (3, 8), (4, 9)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """scikit-learn's digits as IDX files: 60 training and 20 test images a class, about."""
    digits = load_digits()
    images, labels = digits.images.astype(np.uint8), digits.target
    return write_idx_folder(
        tmp_path_factory.mktemp("idx") / "digits", images[:600], labels[:600], images[600:800], labels[600:800]
    )


def small(folder, **parameters):
    return fxdask.reproduce(
        "mnist", folder, **{"seeds": 2, "pairs": PAIRS, "n_nodes": 60, "n_selected": 3} | parameters
    )


@pytest.fixture(scope="module")
def result(folder):
    return small(folder)


@pytest.mark.parametrize("mean_shift", [True, False])
def test_counts_are_those_of_the_definition(folder, mean_shift):
    got = small(folder, mean_shift=mean_shift).results
    digits = load_digits()
    train, test = (slice(0, 600), slice(600, 800))
    for i, pair in enumerate(PAIRS):
        parts = [
            [digits.data[part][digits.target[part] == k] for k in pair]  # the images of a class in their order
            for part in (train, test)
        ]
        assert got.tested[i] == sum(map(len, parts[1]))
        for j, seed in enumerate(got.seeds):
            draws = mean_differences(seed, pair, 60) if mean_shift else None
            want = oracles.pair_correct(*parts, weight_rows(seed, range(60), 64), draws, 3)
            assert {name: int(counts[i, j]) for name, counts in got.correct.items()} == want


def test_without_a_shift_it_is_the_classifier_itself(folder):
    got = small(folder, mean_shift=False, n_nodes=200)
    digits = load_digits()
    for i, pair in enumerate(PAIRS):
        mine = np.isin(digits.target, pair)
        train, test = np.flatnonzero(mine[:600]), 600 + np.flatnonzero(mine[600:800])
        for criterion in ("extended_fisher", "fisher"):
            clf = fxdask.FisherNetworkClassifier(200, 3, criterion=criterion, priors="equal", normalize="sample")
            score = clf.fit(digits.data[train], digits.target[train]).score(digits.data[test], digits.target[test])
            assert got.accuracy[criterion][i, 0] == pytest.approx(100 * score)


@pytest.mark.parametrize(
    ("parameters", "n_threads"), [({"nodes_per_block": 7}, 1), ({"nodes_per_block": 60}, 3), ({}, 2)]
)
def test_the_same_numbers_for_any_blocks_and_threads(folder, result, parameters, n_threads):
    with dask.config.set(num_workers=n_threads):
        again = small(folder, **parameters)
    for criterion, accuracy in result.accuracy.items():
        assert np.array_equal(again.accuracy[criterion], accuracy)


def test_a_pair_and_a_seed_do_not_depend_on_the_others(folder, result):
    alone = small(folder, pairs=[(8, 3)], seeds=[1])
    assert alone.pairs == [(3, 8)]
    for criterion, accuracy in result.accuracy.items():
        assert alone.accuracy[criterion] == accuracy[1, 1]


def test_files(folder, result, tmp_path):
    out = tmp_path / "out"
    small(folder, out=out)
    assert sorted(file.name for file in out.iterdir()) == ["example.npz", "results.csv", "results.json"]
    rows = list(csv.DictReader((out / "results.csv").open()))
    assert len(rows) == len(PAIRS) * 2 * 2
    for row in rows:
        place = PAIRS.index((int(row["class_a"]), int(row["class_b"]))), int(row["seed"])
        assert float(row["accuracy"]) == pytest.approx(result.accuracy[row["criterion"]][place], abs=1e-4)
        assert int(row["correct"]) == result.results.correct[row["criterion"]][place]
    stored = json.loads((out / "results.json").read_text())
    assert set(stored["seeds"]) == {"0", "1"}
    assert stored["facts"]["versions"]["numpy"] == np.__version__


def pairs_done(out):
    """How often each seed's pairs were worked on, by what the processes say they did."""
    seeds = json.loads((out / "results.json").read_text())["seeds"]
    return {seed: sum(work["pairs"] for work in of_seed["processes"].values()) for seed, of_seed in seeds.items()}


def test_more_seeds_and_pairs_go_on_from_what_is_there(folder, result, tmp_path):
    out = tmp_path / "out"
    small(folder, out=out, seeds=1, pairs=PAIRS[:1])
    before = json.loads((out / "results.json").read_text())["seeds"]["0"]
    small(folder, out=out, seeds=1, pairs=PAIRS[:1])
    assert json.loads((out / "results.json").read_text())["seeds"]["0"] == before  # nothing was done again
    whole = small(folder, out=out)
    for criterion, accuracy in result.accuracy.items():
        assert np.array_equal(whole.accuracy[criterion], accuracy)
    assert pairs_done(out) == {"0": len(PAIRS), "1": len(PAIRS)}
    small(folder, out=out, seeds=[1], pairs=PAIRS[:1])  # fewer take nothing away
    assert len((out / "results.csv").read_text().splitlines()) == 1 + len(PAIRS) * 2 * 2


def test_a_killed_run_goes_on_with_the_next_seed(folder, result, tmp_path):
    out = tmp_path / "out"
    words = [sys.executable, "-m", "fxdask", "reproduce", "mnist", "--data", str(folder), "--out", str(out)]
    words += ["--nodes", "60", "--selected", "3", "--pairs", "0-1,3-8,4-9", "--quiet"]
    run = subprocess.Popen([*words, "--seeds", "2000"])
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


def test_other_results_are_refused_and_replaced_when_told(folder, tmp_path):
    out = tmp_path / "out"
    small(folder, out=out, seeds=1)
    with pytest.raises(StoreExistsError, match=r"holds results of n_nodes=60 instead of 50; choose another folder"):
        small(folder, out=out, seeds=1, n_nodes=50)
    with pytest.raises(StoreExistsError, match="mean_shift=True instead of False"):
        small(folder, out=out, seeds=1, mean_shift=False)
    with pytest.raises(StoreExistsError, match="dataset='mnist' instead of 'digits', other images"):
        fxdask.reproduce("digits", seeds=1, pairs=PAIRS, n_nodes=60, n_selected=3, out=out)
    fresh = small(folder, out=out, seeds=1, n_nodes=50, overwrite=True)
    assert fresh.results.identity["n_nodes"] == 50
    assert len(fresh._example.ratios) == 50


@pytest.mark.parametrize("where", ["evaluate_pairs", "make_example"])
def test_another_experiment_after_one_that_was_stopped(folder, tmp_path, monkeypatch, where):
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


def test_what_a_failed_first_write_left_does_not_lock_the_folder(folder, tmp_path):
    (tmp_path / ".results.json.begun").write_text("{")
    small(folder, out=tmp_path, seeds=1)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["example.npz", "results.csv", "results.json"]


def test_a_link_is_the_folder_it_leads_to(folder, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to("out")
    with (
        exclusive_lease(str(tmp_path / "out" / "results.json")),
        pytest.raises(StoreExistsError, match="another call is working on"),
    ):
        small(folder, out=tmp_path / "link", seeds=1)


@pytest.mark.parametrize("name", ["divergences", "responses", "seed", "densities_0"])
def test_an_example_of_another_shape_is_made_anew(folder, tmp_path, name):
    small(folder, out=tmp_path, seeds=1)
    with np.load(tmp_path / "example.npz") as stored:
        arrays = dict(stored)
    np.savez(tmp_path / "example.npz", **arrays | {name: np.zeros((3, 3))})
    again = small(folder, out=tmp_path, seeds=1)
    again.to_html(tmp_path / "report.html")
    assert again._example.divergences.shape == (2, 60)


def test_overwriting_keeps_what_would_come_out_the_same(folder, tmp_path):
    out = tmp_path / "out"
    small(folder, out=out, seeds=1)
    before = json.loads((out / "results.json").read_text())["seeds"]
    small(folder, out=out, seeds=1, overwrite=True)
    assert json.loads((out / "results.json").read_text())["seeds"] == before


def test_a_folder_of_other_files_is_refused(folder, tmp_path):
    (tmp_path / "results.csv").write_text("mine")
    with pytest.raises(StoreExistsError, match="holds other files; choose a new or an empty folder"):
        small(folder, out=tmp_path, seeds=1)
    assert [file.name for file in tmp_path.iterdir()] == ["results.csv"]
    with pytest.raises(InvalidInputError, match=r"results.csv is a file; out is a folder"):
        small(folder, out=tmp_path / "results.csv", seeds=1)


def test_what_a_stopped_call_left_is_removed_by_the_next(folder, tmp_path):
    out = tmp_path / "out"
    small(folder, out=out, seeds=1)
    for seeds in (1, 2):
        (out / ".fxdask-work").mkdir()
        (out / ".fxdask-work" / "left").write_text("over")
        small(folder, out=out, seeds=seeds)
        assert not (out / ".fxdask-work").exists()


def test_the_whole_of_it_from_the_command_line(tmp_path):
    """All 45 pairs of scikit-learn's digits: results, table and report."""
    words = [sys.executable, "-m", "fxdask", "reproduce", "digits", "--seeds", "2", "--nodes", "400"]
    run = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    rows = [line.split() for line in run.stdout.splitlines()]
    pairs = [row for row in rows if len(row[0]) == 3 and row[0][1] == "-"]
    assert len(pairs) == 45
    stored = fxdask.reproduce("digits", seeds=2, n_nodes=400, out=tmp_path / "reproduce-digits")
    assert [row[1] for row in pairs] == [f"{mean:.2f}" for mean in stored.results.mean("extended_fisher")]
    assert stored.results.mean("extended_fisher").mean() > 75
    report = (tmp_path / "reproduce-digits" / "report.html").read_text()
    assert all(f"{mean:.2f}" in report for mean in stored.results.mean("fisher"))
    for word in ("results.json", "results.csv", "report.html"):
        assert f"reproduce-digits/{word}" in run.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cifar"], "is not one of 'mnist', 'fashion_mnist', 'digits'"),
        (["digits", "--pairs", "0,1"], "'0,1' is no list of pairs such as 0-1,3-8"),
        (["digits", "--seeds", "0"], "seeds must be a whole number of at least 1"),
        (["digits", "--seeds", "-1,"], "whole numbers from 0 to 2^63 - 1"),
        (["digits", "--seeds", "99999999999999"], "at most 1,000,000 seeds"),
        (["digits", "--pairs", "0-0"], "pairs are of two different classes from 0 to 9"),
        (["digits", "--pairs", "0-12"], "pairs are of two different classes from 0 to 9"),
        (["digits", "--seeds", "some"], "'some' is neither a number nor numbers with commas"),
        (["digits", "--nodes", "5", "--selected", "6"], "--selected 6 is more than --nodes 5"),
    ],
)
def test_wrong_words(tmp_path, words, message):
    run = run_here(tmp_path, "reproduce", *words)
    assert run.returncode == 2
    assert message in run.stderr
    assert not list(tmp_path.iterdir())


DAMAGED = {"format": 1, "identity": {}, "facts": {}}
SEED = {"seconds": 1.0, "processes": {}, "pairs": {}}


def counted(tested, extended, fisher):
    return {"tested": tested, "fallbacks": 0, "correct": {"extended_fisher": extended, "fisher": fisher}}


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        "[1]",
        "[" * 100_000,
        '{"mine": 1}',
        json.dumps(DAMAGED | {"seeds": {"0": {"pairs": 3}}}),
        json.dumps(DAMAGED | {"seeds": {"first": SEED}}),
        json.dumps(DAMAGED | {"identity": [], "seeds": {}}),
        json.dumps(DAMAGED | {"seeds": {"0": SEED | {"processes": {"a": {}}}}}),
        json.dumps(DAMAGED | {"seeds": {"0": SEED | {"seconds": None}}}),
        json.dumps(DAMAGED | {"seeds": {k: SEED | {"pairs": {"0-1": counted(9 + int(k), 1, 1)}} for k in "01"}}),
        *(
            json.dumps(DAMAGED | {"seeds": {"0": SEED | {"pairs": {"0-1": count}}}})
            for count in (
                counted(10, 11, 1),
                counted(10, -1, 1),
                counted(0, 0, 0),
                counted(10, float("nan"), 0),
                counted(10, 5.5, 0),
                counted("10", 1, 0),
                {"tested": 10, "fallbacks": 0, "correct": {"fisher": 0}},
            )
        ),
    ],
)
def test_damaged_results_are_refused(folder, tmp_path, content, overwrite):
    (tmp_path / "results.json").write_text(content)
    with pytest.raises(StoreFormatError, match=r"results.json is damaged, or no results of .*; move it away"):
        small(folder, out=tmp_path, seeds=1, overwrite=overwrite)
    assert (tmp_path / "results.json").read_text() == content
    assert len(list(tmp_path.iterdir())) == 1


def test_a_damaged_example_is_made_anew(folder, tmp_path):
    small(folder, out=tmp_path, seeds=1)
    whole = (tmp_path / "example.npz").read_bytes()
    (tmp_path / "example.npz").write_bytes(whole[: len(whole) // 2])
    small(folder, out=tmp_path, seeds=1)
    assert len(np.load(tmp_path / "example.npz")["ratios"]) == 60


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"seeds": 0}, "seeds must be a whole number of at least 1"),
        ({"seeds": [1, -1]}, r"whole numbers from 0 to 2\^63 - 1"),
        ({"seeds": [2**70]}, r"whole numbers from 0 to 2\^63 - 1"),
        ({"seeds": 1.5}, "seeds must be"),
        ({"pairs": []}, "pairs is empty"),
        ({"pairs": [(0, 0)]}, "pairs are of two different classes from 0 to 9"),
        ({"pairs": [(0, 10)]}, "pairs are of two different classes from 0 to 9"),
        ({"pairs": [0, 1]}, "pairs are of two different classes"),
        ({"n_selected": 61}, "n_selected=61 is more than n_nodes=60"),
        ({"n_nodes": 0}, "n_nodes must be a whole number"),
        ({"pairs": [("0", "1")]}, "pairs are of two different classes"),
        ({"pairs": [(float("inf"), 1)]}, "pairs are of two different classes"),
        ({"nodes_per_block": 0}, "nodes_per_block must be a whole number"),
        ({"nodes_per_block": "x"}, "nodes_per_block must be a whole number"),
        ({"memory_limit": "much"}, "memory_limit"),
        ({"mean_shift": "no"}, "mean_shift must be True or False, not 'no'"),
        ({"out": 5}, "out must be a path, not 5"),
        ({"out": "s3://bucket/x"}, "out is a folder on a disk, not s3://bucket/x"),
    ],
)
def test_refusals(folder, parameters, message):
    with pytest.raises(InvalidInputError, match=message):
        small(folder, **parameters)


def test_classes_without_images_are_refused(tmp_path):
    rng = np.random.default_rng(0)
    labels = np.arange(40) % 9
    images = rng.integers(0, 256, (40, 3, 3))
    folder = write_idx_folder(tmp_path / "idx", images, labels, images, labels)
    with pytest.raises(InvalidInputError, match="class 9 has 0 training and 0 test images; 2 and 1 are needed"):
        fxdask.reproduce("mnist", folder, seeds=1, n_nodes=20, n_selected=2)
    got = fxdask.reproduce("mnist", folder, seeds=1, n_nodes=20, n_selected=2, pairs=[(7, 8)])
    assert 0 <= got.accuracy["fisher"].item() <= 100


@pytest.mark.filterwarnings("ignore::fxdask.errors.ZeroSpreadWarning")
def test_images_that_do_not_vary_are_refused(tmp_path):
    images, labels = np.full((40, 3, 3), 7), np.arange(40) % 10
    folder = write_idx_folder(tmp_path / "idx", images, labels, images, labels)
    for mean_shift in (True, False):
        with pytest.raises(InvalidInputError, match="the images do not vary: each of them has one value only"):
            fxdask.reproduce("mnist", folder, seeds=1, n_nodes=20, n_selected=2, mean_shift=mean_shift)


@pytest.mark.filterwarnings("ignore::fxdask.errors.ZeroSpreadWarning")
def test_images_of_one_class_that_are_all_the_same(tmp_path):
    images, labels = np.random.default_rng(0).integers(0, 256, (60, 3, 3)), np.arange(60) % 10
    images[labels == 1] = images[1]
    folder = write_idx_folder(tmp_path / "idx", images, labels, images, labels)
    got = fxdask.reproduce("mnist", folder, seeds=2, n_nodes=40, n_selected=2, pairs=[(0, 1), (1, 2), (2, 3)])
    assert got.accuracy["extended_fisher"].shape == (3, 2)
    assert got.results.facts["fallbacks"] > 0
    got.to_html(tmp_path / "report.html")


def test_classes_that_only_the_test_set_has_are_left_out(tmp_path):
    images, labels = np.random.default_rng(0).integers(0, 256, (200, 3, 3)), np.arange(200) % 10
    train = labels != 5
    folder = write_idx_folder(tmp_path / "idx", images[train], labels[train], images, labels)
    got = fxdask.reproduce("mnist", folder, seeds=1, n_nodes=40, n_selected=2, pairs=[(4, 6)])
    assert got.results.tested.tolist() == [40]


def test_what_the_figures_show_is_what_the_definition_says(folder):
    pair, n_nodes = (3, 8), 30
    example = small(folder, seeds=[3], pairs=[pair], n_nodes=n_nodes, nodes_per_block=7)._example
    digits = load_digits()
    weights, draws = weight_rows(3, range(n_nodes), 64).astype(float), mean_differences(3, pair, n_nodes)
    prepared = oracles.normalize(digits.data, "sample")
    of_class = [np.flatnonzero(digits.target[:600] == k) for k in pair]
    tested = [600 + np.flatnonzero(digits.target[600:800] == k) for k in pair]
    trained, seen = ([weights @ prepared[rows].T for rows in part] for part in (of_class, tested))
    where = [np.array([oracles.interquartile_mean(row) for row in values]) for values in trained]
    shift = (draws - (where[1] - where[0]))[:, None]
    trained[1], seen[1] = trained[1] + shift, seen[1] + shift
    spreads = np.array([[oracles.mad(row) for row in values] for values in trained])
    moved = np.array([where[0], where[0] + draws])
    for criterion, got in (("extended_fisher", example.divergences), ("fisher", [example.ratios] * 2)):
        want = oracles.divergences(moved, spreads, [0.5, 0.5], np.zeros(n_nodes), criterion)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    widths = [[oracles.silverman(*one) for one in zip(trained[k], spreads[k], strict=True)] for k in (0, 1)]
    for i in (0, 1):
        assert np.array_equal(example.images[i], digits.data[tested[i][0]])
        for k in (0, 1):
            want = [
                np.exp(oracles.log_density(seen[i][node, 0], trained[k][node], widths[k][node]))
                for node in range(n_nodes)
            ]
            np.testing.assert_allclose(example.responses[i, k], want, rtol=1e-4, atol=1e-6)
    for k, found in enumerate(example.densities):
        assert found.of_class == k
        assert found.node == np.argmax(example.divergences[k])
        for j in (0, 1):
            np.testing.assert_allclose(np.sort(found.tested[j]), np.sort(seen[j][found.node]), rtol=1e-4, atol=1e-4)
            middle = len(found.values) // 2
            want = np.exp(oracles.log_density(found.values[middle], trained[j][found.node], widths[j][found.node]))
            assert found.densities[j][middle] == pytest.approx(want, rel=1e-4, abs=1e-6)


def test_two_calls_do_not_share_a_folder(folder, tmp_path):
    words = [
        sys.executable,
        "-m",
        "fxdask",
        "reproduce",
        "mnist",
        "--data",
        str(folder),
        "--out",
        str(tmp_path / "out"),
    ]
    run = subprocess.Popen([*words, "--nodes", "60", "--selected", "3", "--seeds", "2000", "--quiet"])
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


def test_a_cluster_needs_a_folder(folder):
    with (
        dask.config.set({"distributed.admin.system-monitor.gil.enabled": False}),
        Client(processes=False, dashboard_address=None, n_workers=1),
        pytest.raises(ClusterError, match="name a folder that all of its workers can reach with out="),
    ):
        small(folder)


def test_the_published_figures():
    averages = {
        name: [float(np.mean(list(published_figures(name).mean[c].values()))) for c in ("extended_fisher", "fisher")]
        for name in ("mnist", "fashion_mnist")
    }
    np.testing.assert_allclose(averages["mnist"], [86.54, 61.04], atol=0.006)
    np.testing.assert_allclose(averages["fashion_mnist"], [88.47, 60.51], atol=0.006)
    assert published_figures("digits") is None


def test_intervals_are_students(result):
    row = result.accuracy["fisher"][1]
    want = ttest_1samp(row, 0).confidence_interval(0.95)
    got = result.results.interval("fisher")[1]
    assert got == pytest.approx((want.high - want.low) / 2)
    assert result.results.mean("fisher")[1] == pytest.approx((want.high + want.low) / 2)
