"""The paper's experiment: results match its definition, for any blocks, threads and order of work."""

import csv
import json

import dask
import numpy as np
import oracles
import pytest
from experiment.small_runs import PAIRS, small
from processes import run_python
from scipy.stats import ttest_1samp
from sklearn.datasets import load_digits

import fxdask
from fxdask.experiment.results import published_figures
from fxdask.experiment.shifts import mean_differences
from fxdask.kernels.weights import weight_rows


@pytest.mark.parametrize("mean_shift", [True, False])
def test_counts_match_the_definition(folder, mean_shift):
    got = small(folder, mean_shift=mean_shift).results
    digits = load_digits()
    train, test = (slice(0, 600), slice(600, 800))
    for i, pair in enumerate(PAIRS):
        parts = [
            [digits.data[part][digits.target[part] == k] for k in pair]  # the images of each class, in order
            for part in (train, test)
        ]
        assert got.tested[i] == sum(map(len, parts[1]))
        for j, seed in enumerate(got.seeds):
            draws = mean_differences(seed, pair, 60) if mean_shift else None
            want = oracles.pair_correct(*parts, weight_rows(seed, range(60), 64), draws, 3)
            assert {name: int(counts[i, j]) for name, counts in got.correct.items()} == want


def test_without_a_shift_the_accuracy_is_that_of_the_classifier(folder):
    got = small(folder, mean_shift=False, n_nodes=200)
    digits = load_digits()
    for i, pair in enumerate(PAIRS):
        of_pair = np.isin(digits.target, pair)
        train, test = np.flatnonzero(of_pair[:600]), 600 + np.flatnonzero(of_pair[600:800])
        for criterion in ("extended_fisher", "fisher"):
            clf = fxdask.FisherNetworkClassifier.paper(n_nodes=200, n_selected=3, criterion=criterion)
            score = clf.fit(digits.data[train], digits.target[train]).score(digits.data[test], digits.target[test])
            assert got.accuracy[criterion][i, 0] == pytest.approx(100 * score)


@pytest.mark.parametrize(
    ("parameters", "n_threads"), [({"nodes_per_block": 7}, 1), ({"nodes_per_block": 60}, 3), ({}, 2)]
)
def test_blocks_and_threads_change_no_result(folder, result, parameters, n_threads):
    with dask.config.set(num_workers=n_threads):
        again = small(folder, **parameters)
    for criterion, accuracy in result.accuracy.items():
        assert np.array_equal(again.accuracy[criterion], accuracy)


def test_a_pair_and_a_seed_do_not_depend_on_other_pairs_and_seeds(folder, result):
    alone = small(folder, pairs=[(8, 3)], seeds=[1])
    assert alone.pairs == [(3, 8)]
    for criterion, accuracy in result.accuracy.items():
        assert alone.accuracy[criterion] == accuracy[1, 1]


def test_results_files_hold_every_pair_and_seed(folder, result, tmp_path):
    out = tmp_path / "out"
    small(folder, out=out)
    assert sorted(file.name for file in out.iterdir()) == ["example.npz", "results.csv", "results.json"]
    rows = list(csv.DictReader((out / "results.csv").open()))
    assert len(rows) == len(PAIRS) * 2 * 2
    for row in rows:
        index = PAIRS.index((int(row["class_a"]), int(row["class_b"]))), int(row["seed"])
        assert float(row["accuracy"]) == pytest.approx(result.accuracy[row["criterion"]][index], abs=1e-4)
        assert int(row["correct"]) == result.results.correct[row["criterion"]][index]
    assert list(rows[0]) == ["class_a", "class_b", "seed", "criterion", "correct", "tested", "accuracy"]
    stored = json.loads((out / "results.json").read_text())
    assert set(stored) == {"format", "identity", "facts", "seeds"}
    assert set(stored["seeds"]["0"]) == {"seconds", "processes", "pairs"}
    assert set(stored["seeds"]["0"]["pairs"]["0-1"]) == {"tested", "correct", "fallbacks"}
    assert set(stored["seeds"]) == {"0", "1"}
    assert stored["facts"]["versions"]["numpy"] == np.__version__


def test_the_command_line_runs_all_pairs_of_the_digits(tmp_path):
    """It writes results, a table and a report."""
    words = ("reproduce", "digits", "--seeds", 1, "--nodes", 400)
    status, out, errors = run_python("-m", "fxdask", *words, folder=tmp_path)
    assert status == 0, errors
    rows = [line.split() for line in out.splitlines()]
    pairs = [row for row in rows if len(row[0]) == 3 and row[0][1] == "-"]
    assert len(pairs) == 45
    stored = fxdask.reproduce("digits", seeds=1, n_nodes=400, out=tmp_path / "reproduce-digits")
    assert [row[1] for row in pairs] == [f"{mean:.2f}" for mean in stored.results.mean("extended_fisher")]
    assert stored.results.mean("extended_fisher").mean() > 75
    report = (tmp_path / "reproduce-digits" / "report.html").read_text()
    assert all(f"{mean:.2f}" in report for mean in stored.results.mean("fisher"))
    for name in ("results.json", "results.csv", "report.html"):
        assert f"reproduce-digits/{name}" in out


def test_the_data_of_the_figures_match_the_definition(folder):
    pair, n_nodes = (3, 8), 30
    example = small(folder, seeds=[3], pairs=[pair], n_nodes=n_nodes, nodes_per_block=7)._example
    digits = load_digits()
    weights, draws = weight_rows(3, range(n_nodes), 64).astype(float), mean_differences(3, pair, n_nodes)
    preprocessed = oracles.normalize(digits.data, "sample")
    of_class = [np.flatnonzero(digits.target[:600] == k) for k in pair]
    tested = [600 + np.flatnonzero(digits.target[600:800] == k) for k in pair]
    trained, seen = ([weights @ preprocessed[rows].T for rows in part] for part in (of_class, tested))
    location = [np.array([oracles.interquartile_mean(row) for row in values]) for values in trained]
    shift = (draws - (location[1] - location[0]))[:, None]
    trained[1], seen[1] = trained[1] + shift, seen[1] + shift
    spreads = np.array([[oracles.mad(row) for row in values] for values in trained])
    shifted = np.array([location[0], location[0] + draws])
    for criterion, got in (("extended_fisher", example.divergences), ("fisher", [example.ratios] * 2)):
        want = oracles.divergences(shifted, spreads, [0.5, 0.5], np.zeros_like(spreads), criterion)
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


def test_averages_of_the_published_figures_match_the_paper():
    averages = {
        name: [float(np.mean(list(published_figures(name).mean[c].values()))) for c in ("extended_fisher", "fisher")]
        for name in ("mnist", "fashion_mnist")
    }
    np.testing.assert_allclose(averages["mnist"], [86.54, 61.04], atol=0.006)
    np.testing.assert_allclose(averages["fashion_mnist"], [88.47, 60.51], atol=0.006)
    assert published_figures("digits") is None


def test_intervals_use_the_t_distribution(result):
    row = result.accuracy["fisher"][1]
    want = ttest_1samp(row, 0).confidence_interval(0.95)
    got = result.results.interval("fisher")[1]
    assert got == pytest.approx((want.high - want.low) / 2)
    assert result.results.mean("fisher")[1] == pytest.approx((want.high + want.low) / 2)
