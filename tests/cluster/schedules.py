"""Schedules of faults: what is done to a running job and when, drawn from a seed alone."""

import random
from dataclasses import dataclass

JOBS = ("fit", "score", "rank")
PLACES = ("disk", "bucket", "hosts")
"""A small disk or an object store with all processes on loopback; or a small disk and hosts with separate networks."""
N_PIECES = 20
"""Blocks of a fit or a ranking, and chunks of a scoring."""
N_WORKERS = 2
MOST_FAULTS = 4
LONGEST_PAUSE = 1.0


@dataclass(frozen=True)
class Kind:
    """A kind of fault: the seconds that it may last, and where it can happen."""

    least_seconds: float = 0.0
    most_seconds: float = 0.0
    places: tuple[str, ...] = PLACES


KINDS = {
    "worker killed": Kind(),
    "worker stopped": Kind(5, 40),
    "scheduler restarted": Kind(),
    "caller killed": Kind(),
    "second caller": Kind(),
    "disk full": Kind(1, 8, ("disk", "hosts")),
    "server away": Kind(1, 20, ("bucket",)),
    "cable cut": Kind(2, 40, ("hosts",)),
}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault: it begins some seconds after so many pieces of the job are done, and lasts some seconds."""

    kind: str
    pieces: int
    pause: float
    seconds: float
    target: int
    """Chooses the worker, the host, or how the server goes away."""

    def __str__(self):
        lasts = f" for {self.seconds:.1f} s" if self.seconds else ""
        return f"{self.kind}{lasts} at {self.pieces} of {N_PIECES} pieces + {self.pause:.2f} s (target {self.target})"


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A job, the place where it runs, and its faults in their order."""

    seed: int
    job: str
    place: str
    faults: tuple[Fault, ...]

    def __str__(self):
        return f"schedule {self.seed}: {self.job}, {self.place}; " + "; ".join(map(str, self.faults))


def drawn(seed):
    """The schedule of a seed."""
    rng = random.Random(f"schedule {seed}")
    job, place = rng.choice(JOBS), rng.choice(PLACES)
    possible = [name for name, kind in KINDS.items() if place in kind.places]
    # What can happen only in some places is drawn twice as often there, so that all kinds are about as frequent.
    weights = [1 if KINDS[name].places == PLACES else 2 for name in possible]
    kinds = rng.choices(possible, weights, k=rng.randint(2, MOST_FAULTS))
    faults = [
        Fault(
            kind=name,
            pieces=rng.randint(0, N_PIECES),
            pause=rng.uniform(0, LONGEST_PAUSE),
            seconds=rng.uniform(KINDS[name].least_seconds, KINDS[name].most_seconds),
            target=rng.randrange(4),
        )
        for name in kinds
    ]
    return Schedule(seed=seed, job=job, place=place, faults=tuple(sorted(faults, key=lambda fault: fault.pieces)))
