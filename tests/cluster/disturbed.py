"""One job with the faults of a schedule: processes that are replaced when they die, and callers that call again."""

import json
import os
import signal
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from processes import PythonProcess

from fxdask import errors

from .conftest import SLOW_TASKS
from .object_storage import free_port
from .schedules import N_PIECES, N_WORKERS

SECONDS_OF_A_TASK = 0.4
SECONDS_TO_FINISH = 300
SECONDS_BEFORE_THE_NEXT_CALL = 1
SECONDS_FOR_LATE_WRITES = 2
MOST_CALLS = 40
KILLED = -signal.SIGKILL
NODES_PER_BLOCK = 50
CRITERIA = ("extended_fisher", "kolmogorov_smirnov")

# The command line with pieces of one size, however many workers there are.
CALLER = """
from fxdask.cli.main import main
from fxdask.planning import rank_plan, score_plan
from fxdask.workflows import rank_request
score_plan.BYTES_PER_TASK = rank_plan.BYTES_PER_BLOCK = rank_plan.BYTES_PER_RANGE = rank_plan.FEWEST_FEATURES = 1
rank_request.SMALL = 0
main()
"""

DASK = """
import runpy
runpy.run_module("dask", run_name="__main__", alter_sys=True)
"""

# Every task of a worker notes its begin and its end in a file of the worker. A file of a store gets its name late,
# so that some are partial when their writer dies.
NOTED_TASKS = """
import os
from fxdask.tasks import rank
from zarr.storage import _local

def noted(function):
    def notes(*arguments, **options):
        with open(os.path.join({folder!r}, str(os.getpid())), "a") as file:
            print("begin", file=file, flush=True)
            try:
                return function(*arguments, **options)
            finally:
                print("end", file=file)
    return notes

rank.read_columns, rank.read_range = slow(rank.read_columns), slow(rank.read_range)
projections.weight_block, score.read_pieces = noted(projections.weight_block), noted(score.read_pieces)
rank.read_columns, rank.read_range = noted(rank.read_columns), noted(rank.read_range)
put = _local._put
def slow_put(path, value, exclusive=False):
    path.parent.mkdir(parents=True, exist_ok=True)
    with _local._atomic_write(path, "wb", exclusive=exclusive) as file:
        written = file.write(value.as_buffer_like())
        file.flush()
        time.sleep(0.02)
    return written
_local._put = slow_put
"""


def arguments(job, data, store):
    """The words of a command; ``data`` has the samples, their labels and a model."""
    samples, labels = f"{data}/X.zarr", f"{data}/y.npy"
    nodes = ("--nodes", N_PIECES * NODES_PER_BLOCK, "--nodes-per-block", NODES_PER_BLOCK, "--selected", 3)
    words = {
        "fit": ["fit", samples, labels, store, *nodes],
        "score": ["score", f"{data}/model.zarr", samples, store],
        "rank": ["rank", samples, "--labels", labels, "--store", store, "--criteria", ",".join(CRITERIA)],
    }
    return [*map(str, words[job]), "--json", "--quiet"]


class Cluster:
    """A scheduler and workers; whatever dies is started again, the scheduler at the same address."""

    def __init__(self, folder, environment, hosts=None):
        self.folder, self.hosts = folder, hosts
        self.notes = folder / "notes"
        self.notes.mkdir()
        preload = folder / "preload.py"
        preload.write_text(SLOW_TASKS.format(seconds=SECONDS_OF_A_TASK) + NOTED_TASKS.format(folder=str(self.notes)))
        self.environment = environment | {"DASK_DISTRIBUTED__WORKER__PRELOAD": str(preload)}
        self.names = ("scheduler", "east", "west")[: 1 + N_WORKERS]
        self.port = 8786 if hosts else free_port()
        self.address = f"tcp://{self.host('scheduler')}:{self.port}"
        self.processes, self.kills, self.over = {}, [], threading.Event()
        self._keeper = threading.Thread(target=self._keep, daemon=True)

    def host(self, name):
        return self.hosts.address(name) if self.hosts else "127.0.0.1"

    def start(self, name, program, *words):
        """Start a Python program on a host of this name."""
        if self.hosts:
            program = self.hosts.program_on(name, program)
        return PythonProcess("-c", program, *words, folder=self.folder, **self.environment)

    def call(self, *words):
        """Start the command line on the client's host."""
        return self.start("client", CALLER, *words, "--scheduler", self.address)

    def _start_member(self, name):
        words = ["scheduler", "--port", self.port]
        if name != "scheduler":
            words = ["worker", self.address, "--nthreads", 1, "--no-nanny", "--memory-limit", "1GiB", "--name", name]
        words += ["--host", self.host(name), "--no-dashboard"]
        return self.start(name, DASK, *map(str, words))

    def _keep(self):
        while not self.over.wait(0.2):
            for name in self.names:
                if self.processes[name].poll() is not None:
                    self.processes[name] = self._start_member(name)

    def kill(self, name):
        """Kill a member; notes whether it ran a task."""
        process = self.processes[name]
        self.kills.append((name, process.pid, self._is_busy(process.pid)))
        process.kill()
        process.wait()

    def _is_busy(self, pid):
        file = self.notes / str(pid)
        lines = file.read_text().split() if file.exists() else []
        return lines.count("begin") > lines.count("end")

    def tasks_by_worker(self):
        """Tasks that every worker process began."""
        return {int(file.name): file.read_text().split().count("begin") for file in sorted(self.notes.iterdir())}

    def __enter__(self):
        for name in self.names:
            self.processes[name] = self._start_member(name)
        self._keeper.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self._keeper.join()
        for process in reversed(self.processes.values()):
            process.kill()
            process.wait()


@dataclass
class Outcome:
    """What became of a disturbed job."""

    schedule: object
    hits: Counter = field(default_factory=Counter)
    """Faults of each kind that began while a caller was running."""
    endings: list = field(default_factory=list)
    """What each call said: "finished", "killed", or its error."""
    kills: list = field(default_factory=list)
    tasks: dict = field(default_factory=dict)
    wrong: list = field(default_factory=list)
    seconds: float = 0.0

    def __str__(self):
        kills = ", ".join(f"{name} {pid} {'at work' if busy else 'idle'}" for name, pid, busy in self.kills)
        tasks = ", ".join(f"{pid}: {count}" for pid, count in self.tasks.items())
        return (
            f"{self.schedule}\n  hit {dict(self.hits)} in {self.seconds:.0f} s; killed: {kills or 'none'}; "
            f"tasks by worker process: {tasks}\n  calls: {'; '.join(self.endings)}\n  wrong: {self.wrong or 'nothing'}"
        )


class Disturbed:
    """A job that is called until it finishes, while the faults of its schedule begin and end."""

    def __init__(self, schedule, cluster, place):
        self.cluster, self.place = cluster, place
        self.words = arguments(schedule.job, place.data, place.store)
        self.outcome = Outcome(schedule)
        self.over = threading.Event()
        self.caller, self.others, self._holding = None, [], []
        self._one_of_a_kind = {kind: threading.Lock() for kind in FAULTS}

    def run(self):
        """Call until a call finishes -> what became of it."""
        began = time.monotonic()
        disturbing = threading.Thread(target=self._disturb, daemon=True)
        disturbing.start()
        try:
            self._call_until_finished()
        finally:
            self.over.set()
            for thread in (disturbing, *self._holding):
                thread.join()
        for other in self.others:
            self._ending(other)
        time.sleep(SECONDS_FOR_LATE_WRITES)
        self.outcome.kills, self.outcome.tasks = self.cluster.kills, self.cluster.tasks_by_worker()
        self.outcome.seconds = time.monotonic() - began
        return self.outcome

    def _call_until_finished(self):
        for _ in range(MOST_CALLS):
            self.caller = self.cluster.call(*self.words)
            if self._ending(self.caller) == "finished":
                return
            time.sleep(SECONDS_BEFORE_THE_NEXT_CALL)
        self.outcome.wrong.append(f"no call of {MOST_CALLS} finished")

    def is_running(self):
        return self.caller is not None and self.caller.poll() is None

    def _disturb(self):
        for fault in self.outcome.schedule.faults:
            while not self.over.is_set() and (self.place.n_done() < fault.pieces or not self.is_running()):
                self.over.wait(0.05)
            self.over.wait(fault.pause)
            while not self.over.is_set() and not self.is_running():
                self.over.wait(0.05)
            if not self.over.is_set():
                thread = threading.Thread(target=self._hold, args=(fault,), daemon=True)
                self._holding.append(thread)
                thread.start()

    def _hold(self, fault):
        """Begin a fault, wait, and end it; a job that finishes meanwhile ends it too."""
        with self._one_of_a_kind[fault.kind]:
            if self.over.is_set():
                return
            try:
                with FAULTS[fault.kind](self, fault):
                    self.outcome.hits[fault.kind] += 1
                    self.over.wait(fault.seconds)
            except Exception as error:
                self.outcome.wrong.append(f"{fault} failed: {error!r}")

    def _ending(self, process):
        """Wait for a call -> how it ended; errors that are no single sentence of fxdask are noted."""
        try:
            out, err = process.communicate(timeout=SECONDS_TO_FINISH)
        except TimeoutError:
            self.outcome.wrong.append(f"a call did not end within {SECONDS_TO_FINISH} s")
            process.kill()
            out, err = process.communicate()
        status = process.returncode
        if status == 0:
            ending = "finished"
            self._check_counts(json.loads(out))
        else:
            ending = "killed" if status == KILLED else error_sentence(status, out, err, self.outcome.wrong)
        self.outcome.endings.append(ending)
        return ending

    def _check_counts(self, found):
        """No piece was counted twice; a scoring does not count those whose worker died after it had written them."""
        if self.outcome.schedule.job == "fit":
            facts = found.get("fit") or {}
            counts = facts.get("blocks_by_process"), facts.get("n_blocks_resumed")
        elif self.outcome.schedule.job == "score":
            counts = found["chunks_by_process"], found["samples_resumed"] * N_PIECES // found["samples"]
        else:
            return
        if counts[0] and sum(counts[0].values()) + counts[1] > N_PIECES:
            self.outcome.wrong.append(f"{counts[0]} and {counts[1]} resumed are more than {N_PIECES} pieces")


def error_sentence(status, out, err, wrong):
    """The error of a call; it must be one line on standard error, and the same as JSON, and of a class of fxdask."""
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    try:
        told = json.loads(out)
        kind = getattr(errors, told["type"], Exception)
        is_ours = issubclass(kind, (errors.FxdaskError, ValueError)) and lines == [f"error: {told['error']}"]
    except (ValueError, KeyError):
        is_ours = False
    if status != 1 or not is_ours or "Traceback" in err:
        wrong.append(f"status {status}, output {out!r}, errors {err!r}")
    return lines[0] if lines else err


@contextmanager
def worker_killed(run, fault):
    run.cluster.kill(run.cluster.names[1 + fault.target % N_WORKERS])
    yield


@contextmanager
def worker_stopped(run, fault):
    pid = run.cluster.processes[run.cluster.names[1 + fault.target % N_WORKERS]].pid
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    yield
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


@contextmanager
def scheduler_restarted(run, fault):
    run.cluster.kill("scheduler")
    yield


@contextmanager
def caller_killed(run, fault):
    run.caller.kill()
    yield


@contextmanager
def second_caller(run, fault):
    run.others.append(run.cluster.call(*run.words))
    yield


@contextmanager
def disk_full(run, fault):
    filler = run.place.folder / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    yield
    filler.unlink()


@contextmanager
def server_away(run, fault):
    """The server is silent, or refuses connections."""
    with run.place.silent() if fault.target % 2 else run.place.refusing():
        yield


@contextmanager
def cable_cut(run, fault):
    host = ("scheduler", "east", "west", "client")[fault.target]
    run.cluster.hosts.cut(host)
    yield
    run.cluster.hosts.reconnect(host)


FAULTS = {
    "worker killed": worker_killed,
    "worker stopped": worker_stopped,
    "scheduler restarted": scheduler_restarted,
    "caller killed": caller_killed,
    "second caller": second_caller,
    "disk full": disk_full,
    "server away": server_away,
    "cable cut": cable_cut,
}
