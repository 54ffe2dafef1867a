"""Jobs that are disturbed by schedules of faults, each drawn from a seed, finish with the bytes of undisturbed ones."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest
import zarr
from processes import run_python

from fxdask import FisherNetworkClassifier

from .disturbed import CALLER, Cluster, Disturbed, arguments
from .hosts import network, why_no_namespaces
from .places import bucket, contents_of, small_disk
from .schedules import KINDS, N_PIECES, drawn

SHORT_SEEDS = (17, 48)
"""Seeds of the default run, whose schedules take little time."""
N_SEEDS = 50
AT_A_TIME = 3
"""Schedules that run at once, because they mostly wait."""
ROWS_PER_CHUNK = 50


def pytest_generate_tests(metafunc):
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(N_SEEDS) if metafunc.config.getoption("--full") else SHORT_SEEDS)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Samples of as many features and chunks as a job has pieces, their labels, and a model."""
    folder = tmp_path_factory.mktemp("data")
    n_samples = N_PIECES * ROWS_PER_CHUNK
    X = np.random.default_rng(0).standard_normal((n_samples, N_PIECES), dtype=np.float32)
    X[::2] *= 1.2
    zarr.create_array(folder / "X.zarr", data=X, chunks=(ROWS_PER_CHUNK, N_PIECES))
    np.save(folder / "y.npy", np.arange(n_samples) % 2)
    clf = FisherNetworkClassifier(100, 3, combine="sum", store=folder / "model.zarr")
    clf.fit(X[:300], np.arange(300) % 2)
    return folder


class Undisturbed:
    """The contents of the stores of undisturbed jobs, each computed once, on threads."""

    def __init__(self, folder, data):
        self._folder, self._data, self._found, self._one = folder, data, {}, threading.Lock()

    def on_disk(self, job):
        with self._one:
            if job not in self._found:
                store = self._folder / f"{job}.zarr"
                run_undisturbed(job, self._data, store)
                self._found[job] = contents_of(store)
            return self._found[job]


def run_undisturbed(job, data, store, **environment):
    status, _, err = run_python("-c", CALLER, *arguments(job, data, store), **environment)
    assert status == 0, err


@pytest.fixture(scope="module")
def outcomes(request, data, tmp_path_factory):
    """What becomes of each schedule that is tested, by its seed; some run at once."""
    undisturbed = Undisturbed(tmp_path_factory.mktemp("undisturbed"), data)
    tests = [item for item in request.session.items if item.path == request.path and "outcomes" in item.fixturenames]
    seeds = [test.callspec.params["seed"] for test in tests]

    def one(seed):
        outcome = disturbed_outcome(drawn(seed), tmp_path_factory.mktemp(f"schedule-{seed}"), data, undisturbed)
        print(outcome, flush=True)
        return outcome

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        futures = {seed: pool.submit(one, seed) for seed in seeds}
        yield futures
        for future in futures.values():
            future.cancel()
    print_totals([future.result() for future in futures.values() if not future.cancelled() and not future.exception()])


def disturbed_outcome(schedule, folder, data, undisturbed):
    """Run the job of a schedule, and compare its store with an undisturbed one."""
    print(schedule, flush=True)
    if schedule.place == "hosts" and why_no_namespaces():
        pytest.skip(why_no_namespaces())
    with ExitStack() as stack:
        if schedule.place == "bucket":
            place = stack.enter_context(bucket(data))
            run_undisturbed(schedule.job, place.data, place.undisturbed_store, **place.environment)
            wanted = place.undisturbed_contents()
        else:
            place = stack.enter_context(small_disk(folder / "disk", data))
            wanted = undisturbed.on_disk(schedule.job)
        names = ("scheduler", "east", "west", "client")
        hosts = stack.enter_context(network(*names)) if schedule.place == "hosts" else None
        cluster = stack.enter_context(Cluster(folder, place.environment, hosts))
        outcome = Disturbed(schedule, cluster, place).run()
        check_store(place, wanted, outcome.wrong)
    return outcome


def check_store(place, wanted, wrong):
    """Note every difference from the store of an undisturbed job, and everything that is left beside it."""
    found = place.contents()
    different = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    if different:
        wrong.append(f"{len(different)} of {len(wanted)} files differ, such as {different[:5]}")
    if place.left():
        wrong.append(f"left beside the store: {place.left()}")


def print_totals(outcomes):
    hits = sum((outcome.hits for outcome in outcomes), Counter())
    kills = [kill for outcome in outcomes for kill in outcome.kills]
    at_work = sum(busy for _, _, busy in kills)
    print(
        f"\n{len(outcomes)} schedules, {sum(not outcome.wrong for outcome in outcomes)} hold every invariant; faults "
        f"that began while a call ran: {', '.join(f'{kind} {hits[kind]}' for kind in KINDS)}; {len(kills)} schedulers "
        f"and workers killed, {at_work} of them at work; {sum(len(outcome.tasks) for outcome in outcomes)} worker "
        f"processes began {sum(sum(outcome.tasks.values()) for outcome in outcomes)} tasks; "
        f"{sum(len(outcome.endings) for outcome in outcomes)} calls",
        flush=True,
    )


def test_a_disturbed_job_finishes_with_the_same_bytes(outcomes, seed):
    outcome = outcomes[seed].result()
    assert not outcome.wrong, str(outcome)
    assert outcome.hits.total() > 0


@pytest.mark.full
def test_all_kinds_of_faults_are_drawn():
    schedules = [drawn(seed) for seed in range(N_SEEDS)]
    counts = Counter(fault.kind for schedule in schedules for fault in schedule.faults)
    assert set(counts) == set(KINDS)
    assert schedules == [drawn(seed) for seed in range(N_SEEDS)]
