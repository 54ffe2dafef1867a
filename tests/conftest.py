import argparse
import contextlib
import copy
import ctypes
import random
import shutil
from collections import Counter
from itertools import zip_longest
from pathlib import Path

import numpy as np
import pytest
from disks import mounted_disk
from hypothesis import HealthCheck, settings
from scoring_runs import wide_in

from fxdask.planning import score_plan

for profile, n_examples in (("short", 10), ("full", 50)):
    settings.register_profile(
        profile,
        deadline=None,
        max_examples=n_examples,
        suppress_health_check=[HealthCheck.too_slow],
        print_blob=True,
    )

# glibc keeps up to 64 MiB of freed memory for each thread, so a process that runs all tests would grow to 1.2 GiB.
M_TRIM_THRESHOLD = -1
with contextlib.suppress(AttributeError):  # other C libraries do not have this setting
    ctypes.CDLL(None).mallopt(M_TRIM_THRESHOLD, 128 * 1024)


@pytest.fixture(scope="session")
def two_blobs():
    """240 samples of two classes with equal means and different variances, which Fisher's criterion cannot separate."""
    rng = np.random.default_rng(5)
    X = rng.standard_normal((240, 6)).astype(np.float32)
    y = np.arange(240) % 2
    X[y == 1, :3] *= 4
    return X, y


@pytest.fixture(scope="session")
def three_blobs():
    """300 samples of three classes that differ in mean and spread, with text labels."""
    rng = np.random.default_rng(6)
    codes = np.arange(300) % 3
    X = rng.standard_normal((300, 5)) * (1 + codes[:, None]) + 4 * codes[:, None]
    return X, np.array(["ash", "birch", "cedar"])[codes]


@pytest.fixture(scope="session")
def wide_once(tmp_path_factory):
    """The files of ``wide``, which are copied for each test."""
    folder = tmp_path_factory.mktemp("wide")
    return folder, *wide_in(folder)


@pytest.fixture
def wide(wide_once, tmp_path, monkeypatch):
    """A model, and a test set of 40 chunks, each scored by its own task; both are also files in ``tmp_path``."""
    monkeypatch.setattr(score_plan, "BYTES_PER_TASK", 1)
    folder, model, X, y = wide_once
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    return copy.copy(model), X, y  # a copy, because tests set parameters of the model


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 4 MiB, which a test can fill."""
    with mounted_disk(tmp_path / "disk") as folder:
        yield folder


def pytest_configure(config):
    """Choose how many examples Hypothesis tries, before test files that ask for a share of them are imported."""
    settings.load_profile("full" if config.getoption("--full") else "short")


def pytest_addoption(parser):
    parser.addoption("--cluster", action="store_true", help="run only the cluster tests, and list their groups")
    parser.addoption(
        "--full",
        action="store_true",
        help="run the long tests too, such as twenty seeds of jobs whose workers are killed, and more examples",
    )
    parser.addoption(
        "--order",
        default="given",
        type=order,
        metavar="given|reverse|random:SEED",
        help="the order of the tests; results must not depend on it (given: files of cluster tests and others in turn)",
    )


def order(value):
    """Check a value of --order."""
    name, _, seed = value.partition(":")
    if value in ("given", "reverse") or (name == "random" and seed):
        return value
    raise argparse.ArgumentTypeError(f"{value!r} is not one of given, reverse and random:SEED")


def ordered(items, value):
    """Sort the tests by the value of --order alone, so that all processes of a run have the same order.

    The tests of a file stay together, because they share fixtures.
    """
    if value == "given":
        # Cluster tests often wait, so their files take turns with the others, which then run at the same time.
        return [item for file in taking_turns(tests_by_file(items)) for item in file]
    if value == "reverse":
        return items[::-1]
    generator = random.Random(value)
    shuffled = tests_by_file(items)
    generator.shuffle(shuffled)
    for tests in shuffled:
        generator.shuffle(tests)
    return [item for tests in shuffled for item in tests]


def tests_by_file(items):
    """The tests of each file."""
    files = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    return list(files.values())


def taking_turns(files):
    """Files of cluster tests and other files in turn, until there are none of the first; then all others."""
    cluster = [tests for tests in files if is_cluster_test(tests[0].path)]
    others = [tests for tests in files if not is_cluster_test(tests[0].path)]
    pairs = zip_longest(cluster, others[: len(cluster)])
    return [tests for pair in pairs for tests in pair if tests] + others[len(cluster) :]


def pytest_collection_modifyitems(config, items):
    """Deselect long tests unless --full is given, and all but the cluster tests if --cluster is given."""
    kept, deselected = [], []
    for item in items:
        wanted = is_cluster_test(item.path) or not config.getoption("--cluster")
        short = config.getoption("--full") or item.get_closest_marker("full") is None
        (kept if wanted and short else deselected).append(item)
    items[:] = ordered(kept, config.getoption("--order"))
    config.hook.pytest_deselected(items=deselected)


def is_cluster_test(path):
    return path.parent.name == "cluster"


def pytest_terminal_summary(terminalreporter, config):
    """List the groups of cluster tests, and why tests were skipped."""
    if not config.getoption("--cluster"):
        return
    groups = {}
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.getreports(outcome):
            if outcome != "passed" or report.when == "call":
                counts, reasons = groups.setdefault(Path(report.nodeid.partition("::")[0]).stem, (Counter(), set()))
                counts[outcome] += 1
                if outcome == "skipped":
                    reasons.add(report.longrepr[2].removeprefix("Skipped: "))
    terminalreporter.section("groups of cluster tests")
    for name, (counts, reasons) in sorted(groups.items()):
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
        terminalreporter.write_line(f"{name:24} {outcomes}{''.join(f'; {reason}' for reason in sorted(reasons))}")
    skipped = sum(counts["skipped"] > 0 for counts, _ in groups.values())
    terminalreporter.write_line(f"{len(groups)} groups, {skipped} with tests that this machine cannot run")


def pytest_generate_tests(metafunc):
    if "chaos_seed" in metafunc.fixturenames:
        metafunc.parametrize("chaos_seed", range(20 if metafunc.config.getoption("--full") else 1))
    if "share" in metafunc.fixturenames:
        metafunc.parametrize("share", (0.1, 0.5, 0.9) if metafunc.config.getoption("--full") else (0.5,))
