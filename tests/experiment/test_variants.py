"""Rules and selections beside the paper's: results match their definition, and are kept apart from other results."""

import csv
import json

import dask
import numpy as np
import oracles
import pytest
from command_line import run_here
from experiment.small_runs import PAIRS, small
from scipy.stats import ttest_1samp
from sklearn.datasets import load_digits

import fxdask
from fxdask.errors import StoreExistsError
from fxdask.experiment.reproduce import _papers_settings
from fxdask.experiment.shifts import mean_differences
from fxdask.experiment.variants import Variant, checked_rules, checked_selections, compared_variants
from fxdask.kernels.weights import weight_rows
from fxdask.planning.pool_plan import pool_size_for

ALL = {"rules": ["sum", "scaled", "log", "joint"], "selections": ["top", "joint"]}
SOME = {"rules": ["sum", "log", "joint"], "selections": ["top", "joint"]}
NAMES = [
    "extended_fisher",
    "extended_fisher log top",
    "extended_fisher joint top",
    "extended_fisher sum joint",
    "extended_fisher log joint",
    "extended_fisher joint joint",
    "fisher",
    "fisher log top",
    "fisher joint top",
]


@pytest.fixture(scope="module")
def beyond(folder):
    """The small run with other rules and selections, which other runs must match."""
    return small(folder, **SOME)


def test_names_and_order_of_the_variants():
    assert [variant.name for variant in compared_variants(("sum", "log", "joint"), ("top", "joint"))] == NAMES
    assert [variant.name for variant in compared_variants(("sum",), ("top",))] == ["extended_fisher", "fisher"]
    assert Variant("fisher").is_papers
    assert not Variant("fisher", "log").is_papers


def test_the_papers_choices_are_always_included():
    assert checked_rules("joint") == ("sum", "joint")
    assert checked_rules(["joint", "log", "joint"]) == ("sum", "log", "joint")
    assert checked_selections(["joint"]) == ("top", "joint")


@pytest.mark.parametrize("mean_shift", [True, False])
def test_counts_match_the_definition(folder, mean_shift):
    got = small(folder, mean_shift=mean_shift, seeds=[1], pairs=PAIRS[:2], **ALL).results
    digits = load_digits()
    for i, pair in enumerate(got.pairs):
        train, test = (
            [digits.data[part][digits.target[part] == k] for k in pair] for part in (slice(0, 600), slice(600, 800))
        )
        draws = mean_differences(1, pair, 60) if mean_shift else None
        weights = weight_rows(1, range(60), 64)
        want = oracles.pair_correct_beyond(train, test, weights, draws, 3, pool_size_for(2, 3))
        found = {name: int(counts[i, 0]) for name, counts in got.correct.items()}
        assert found == {Variant(*key).name: count for key, count in want.items()}


def test_without_a_shift_the_accuracy_is_that_of_the_classifier(folder):
    got = small(folder, mean_shift=False, n_nodes=200, seeds=1, **SOME)
    digits = load_digits()
    for i, pair in enumerate(PAIRS):
        of_pair = np.isin(digits.target, pair)
        train, test = np.flatnonzero(of_pair[:600]), 600 + np.flatnonzero(of_pair[600:800])
        for variant in got.results.variants:
            clf = fxdask.FisherNetworkClassifier(
                200,
                3,
                criterion=variant.criterion,
                combine=variant.rule,
                selection=variant.selection,
                priors="equal",
                normalize="sample",
                random_state=0,
            )
            score = clf.fit(digits.data[train], digits.target[train]).score(digits.data[test], digits.target[test])
            assert got.accuracy[variant.name][i, 0] == pytest.approx(100 * score), variant


def test_the_papers_results_do_not_depend_on_other_rules(result, beyond):
    assert list(beyond.accuracy) == NAMES
    for criterion, accuracy in result.accuracy.items():
        assert np.array_equal(beyond.accuracy[criterion], accuracy)
    assert not result.results.is_beyond_the_paper
    assert beyond.results.summary() == result.results.summary()


def test_a_rule_does_not_depend_on_other_rules(folder, beyond):
    alone = small(folder, rules="joint", selections="joint")
    assert list(alone.accuracy) == [NAMES[i] for i in (0, 2, 3, 5, 6, 8)]
    for name, accuracy in alone.accuracy.items():
        assert np.array_equal(beyond.accuracy[name], accuracy)


@pytest.mark.parametrize(("parameters", "n_threads"), [({"nodes_per_block": 7}, 1), ({"nodes_per_block": 60}, 3)])
def test_blocks_and_threads_change_no_result(folder, beyond, parameters, n_threads):
    with dask.config.set(num_workers=n_threads):
        again = small(folder, **SOME, **parameters)
    for name, accuracy in beyond.accuracy.items():
        assert np.array_equal(again.accuracy[name], accuracy)


def test_averages_have_intervals_and_gains(beyond):
    rows = beyond.results.comparison()
    assert [Variant(row["criterion"], row["rule"], row["selection"]).name for row in rows] == NAMES
    for name, row in zip(NAMES, rows, strict=True):
        of_seeds = beyond.accuracy[name].mean(axis=0)
        interval = ttest_1samp(of_seeds, 0).confidence_interval(0.95)
        assert row["average"] == pytest.approx(of_seeds.mean())
        assert row["interval"] == pytest.approx((interval.high - interval.low) / 2)
        assert row["gain"] == pytest.approx(of_seeds.mean() - beyond.accuracy[row["criterion"]].mean())
    assert rows[0]["gain"] == rows[6]["gain"] == 0


def test_results_files_name_rules_and_selections(folder, beyond, tmp_path):
    small(folder, out=tmp_path, **SOME)
    rows = list(csv.DictReader((tmp_path / "results.csv").open()))
    assert list(rows[0]) == [
        *("class_a", "class_b", "seed"),
        *("criterion", "rule", "selection"),
        *("correct", "tested", "accuracy"),
    ]
    assert len(rows) == len(PAIRS) * 2 * len(NAMES)
    for row in rows:
        index = PAIRS.index((int(row["class_a"]), int(row["class_b"]))), int(row["seed"])
        name = Variant(row["criterion"], row["rule"], row["selection"]).name
        assert int(row["correct"]) == beyond.results.correct[name][index]
    stored = json.loads((tmp_path / "results.json").read_text())
    assert list(stored["seeds"]["0"]["pairs"]["0-1"]["correct"]) == NAMES
    assert stored["identity"]["rules"] == ["sum", "log", "joint"]
    assert stored["identity"]["selections"] == ["top", "joint"]
    assert stored["identity"]["pool_size"] == 60


def test_the_papers_experiment_does_not_name_rules(folder, tmp_path):
    small(folder, out=tmp_path, seeds=1, rules=["sum"], selections=["top"])
    assert set(json.loads((tmp_path / "results.json").read_text())["identity"]) == {
        *("dataset", "data", "n_nodes", "n_selected", "mean_shift"),
        *("weight_scheme", "zero_tolerance", "streams"),
    }


def test_more_seeds_are_added_to_results_of_other_rules(folder, beyond, tmp_path):
    small(folder, out=tmp_path, seeds=1, **SOME)
    before = json.loads((tmp_path / "results.json").read_text())["seeds"]["0"]
    whole = small(folder, out=tmp_path, rules=["joint", "log"], selections="joint")  # the same, in other words
    assert json.loads((tmp_path / "results.json").read_text())["seeds"]["0"] == before
    for name, accuracy in beyond.accuracy.items():
        assert np.array_equal(whole.accuracy[name], accuracy)


def test_results_of_other_rules_are_not_mixed(folder, tmp_path):
    small(folder, out=tmp_path, seeds=1)
    with pytest.raises(StoreExistsError, match=r"holds results of rules=\['sum'\] instead of \['sum', 'log'\]; choose"):
        small(folder, out=tmp_path, seeds=1, rules="log")
    with pytest.raises(
        StoreExistsError, match=r"of selections=\['top'\] instead of \['top', 'joint'\]; choose another"
    ):
        small(folder, out=tmp_path, seeds=1, selections="joint")
    small(folder, out=tmp_path, seeds=1, rules="log", overwrite=True)
    with pytest.raises(
        StoreExistsError, match=r"of rules=\['sum', 'log'\] instead of \['sum'\]; choose another folder"
    ):
        small(folder, out=tmp_path, seeds=1)
    again = small(folder, out=tmp_path, seeds=1, overwrite=True)
    assert list(again.accuracy) == ["extended_fisher", "fisher"]


def test_results_of_other_candidates_are_not_mixed(folder, tmp_path):
    small(folder, out=tmp_path, seeds=1, selections="joint")
    stored = json.loads((tmp_path / "results.json").read_text())
    stored["identity"]["pool_size"] = 29
    (tmp_path / "results.json").write_text(json.dumps(stored))
    with pytest.raises(StoreExistsError, match="holds results of pool_size=29 instead of 60; choose another folder"):
        small(folder, out=tmp_path, seeds=1, selections="joint")


def test_the_papers_parameters_do_not_follow_the_classifiers_defaults(monkeypatch):
    want = _papers_settings(60, 3, "auto", "gaussian")
    others = dict.fromkeys(
        vars(want).keys() & fxdask.FisherNetworkClassifier.__init__.__kwdefaults__.keys(), "not the paper's"
    )
    assert len(others) > 10
    defaults = fxdask.FisherNetworkClassifier.__init__.__kwdefaults__ | others
    monkeypatch.setattr(fxdask.FisherNetworkClassifier.__init__, "__kwdefaults__", defaults)
    assert _papers_settings(60, 3, "auto", "gaussian") == want
    assert (want.criterion, want.combine, want.selection, want.priors, want.normalize) == (
        *("extended_fisher", "sum", "top"),
        *("equal", "sample"),
    )


WORDS = ["--seeds", "2", "--nodes", "60", "--selected", "3", "--pairs", "0-1,3-8,4-9", "--quiet"]
WORDS += ["--rules", "sum,log,joint", "--selection", "top,joint"]


def test_the_command_line_shows_all_variants(folder, beyond, tmp_path):
    run = run_here(tmp_path, "reproduce", "mnist", "--data", folder, *WORDS)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert lines[1].split() == ["top", "top", "top", "joint", "joint", "joint", "fisher", "fisher", "fisher"]
    assert lines[2].split() == ["pair", *("sum", "log", "joint") * 3]
    means = [beyond.results.mean(name) for name in NAMES]
    for i, pair in enumerate(("0-1", "3-8", "4-9")):
        assert lines[3 + i].split() == [pair, *(f"{mean[i]:.2f}" for mean in means)]
    averages = lines[lines.index("rules and selections") + 2 :][: len(NAMES)]
    for row, line in zip(beyond.results.comparison(), averages, strict=True):
        gain = [] if line == averages[0] or line == averages[6] else [f"{row['gain']:+.2f}"]
        words = [row["rule"], row["selection"], f"{row['average']:.2f}", f"±{row['interval']:.2f}", *gain]
        assert line.split()[-len(words) :] == words
    assert max(map(len, lines[: lines.index("rules and selections") + 11])) <= 100
    assert "Beyond the paper" in (tmp_path / "reproduce-mnist" / "report.html").read_text()


def test_the_papers_figures_stand_beside_its_variants(folder, tmp_path):
    """The paper has figures for 10,000 nodes, of which 10 are selected."""
    words = [
        "--data",
        folder,
        "--seeds",
        "1",
        "--pairs",
        "3-8",
        "--quiet",
        "--rules",
        "joint",
        "--out",
        tmp_path / "out",
    ]
    run = run_here(tmp_path, "reproduce", "mnist", *words)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[2].split() == ["pair", *("paper", "sum", "joint") * 2]
    published = fxdask.experiment.results.published_figures("mnist").mean
    shown = run.stdout.splitlines()[3].split()
    assert [shown[1], shown[4]] == [f"{published[name][3, 8]:.2f}" for name in ("extended_fisher", "fisher")]


def test_the_command_line_prints_all_variants_as_json(folder, beyond, tmp_path):
    run = run_here(tmp_path, "reproduce", "mnist", "--data", folder, *WORDS, "--json")
    assert run.returncode == 0, run.stderr
    printed = json.loads(run.stdout)
    for name in NAMES:
        np.testing.assert_allclose([row[name] for row in printed["pairs"]], beyond.results.mean(name))
        np.testing.assert_allclose([row[f"{name}_interval"] for row in printed["pairs"]], beyond.results.interval(name))
    assert printed["rules_and_selections"] == beyond.results.comparison()
    assert [row["criterion"] for row in printed["summary"]] == ["extended_fisher", "fisher"]
