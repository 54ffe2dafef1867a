"""The paper's experiment on worker processes."""

import json

import numpy as np
import pytest
from command_line import run_here

import fxdask

PAIRS = [(0, 1), (2, 7), (3, 8), (4, 9)]
BEYOND = {"rules": "joint", "selections": "joint"}
WORDS = ["--seeds", "2", "--nodes", "300", "--selected", "4", "--pairs", "0-1,2-7,3-8,4-9", "--nodes-per-block", "50"]


@pytest.fixture(scope="module")
def threaded():
    return fxdask.reproduce("digits", seeds=2, pairs=PAIRS, n_nodes=300, n_selected=4, **BEYOND)


def test_workers_give_the_same_numbers_as_threads(client, threaded, tmp_path):
    result = fxdask.reproduce(
        "digits", seeds=2, pairs=PAIRS, n_nodes=300, n_selected=4, nodes_per_block=50, out=tmp_path, **BEYOND
    )
    assert "extended_fisher joint joint" in threaded.accuracy
    for criterion, accuracy in threaded.accuracy.items():
        assert np.array_equal(result.accuracy[criterion], accuracy)
    work = result.results.facts["processes"]
    pids = {str(pid) for pid in client.run(lambda: __import__("os").getpid()).values()}
    assert {process.rpartition(":")[2] for process in work} <= pids
    assert sum(done["blocks"] for done in work.values()) == 2 * 6
    assert sum(done["pairs"] for done in work.values()) == 2 * len(PAIRS)
    assert all(done["peak_bytes"] > 0 for done in work.values())


def test_the_command_line_gives_the_same_numbers(address, threaded, tmp_path):
    run = run_here(tmp_path, "reproduce", "digits", *WORDS, "--scheduler", address, "--json", "--quiet")
    assert run.returncode == 0, run.stderr
    printed = json.loads(run.stdout)
    for criterion in ("extended_fisher", "fisher"):
        np.testing.assert_allclose(
            [row[criterion] for row in printed["pairs"]], threaded.accuracy[criterion].mean(axis=1)
        )
    assert (tmp_path / printed["report"]).read_text().startswith("<!doctype html>")
