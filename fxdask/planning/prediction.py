"""What a fit will take, from measured rates: seconds, bytes read by each worker, messages, and what limits it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MESSAGES_PER_TASK", "SECONDS_PER_BLOCK", "SECONDS_PER_TASK", "Prediction", "Rates"]

SECONDS_PER_TASK = 0.001
"""Time of Dask's scheduler for one task, at least."""
SECONDS_PER_BLOCK = 0.015
"""Time of a worker for one block besides its work: it receives the task, writes the results and answers."""
MESSAGES_PER_TASK = 3
"""To the worker, back to the scheduler, and on to the caller."""


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Seconds that one thread takes for each unit of work, while all threads of the machine work."""

    product: float
    """For one multiplication and addition of a sample's feature and a weight."""
    sorting: float
    """For one projected value: order statistics, sums and criteria."""
    weight: float
    """For one drawn weight."""
    reading: float
    """For one byte of raw samples; 0 if they are in memory."""
    scanning: float
    """For one byte of raw samples, in both passes before the blocks, without reading them."""
    finishing: float
    """For tables, bandwidths and the temperature, in all; they hardly depend on the number of samples."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a fit is expected to take."""

    seconds_preparing: float
    seconds_in_blocks: float
    seconds_finishing: float
    seconds_per_block: float
    seconds_by_limit: dict[str, float]
    """The time of the blocks if only product, sorting, reading or scheduling took time."""
    bytes_read_per_worker: int
    tasks: int
    threads_without_block: int

    @property
    def seconds(self) -> float:
        """The whole time."""
        return self.seconds_preparing + self.seconds_in_blocks + self.seconds_finishing

    @property
    def limit(self) -> str:
        """Which of product, sorting, reading and scheduling takes the most time."""
        return max(self.seconds_by_limit, key=lambda name: self.seconds_by_limit[name])

    def facts(self) -> dict[str, int | float | str | None]:
        """The prediction as numbers."""
        return {
            "seconds_predicted": _rounded(self.seconds),
            "seconds_preparing": _rounded(self.seconds_preparing),
            "seconds_in_blocks": _rounded(self.seconds_in_blocks),
            "seconds_finishing": _rounded(self.seconds_finishing),
            "seconds_per_block": _rounded(self.seconds_per_block),
            **{f"seconds_of_{name}": _rounded(seconds) for name, seconds in self.seconds_by_limit.items()},
            "limited_by": self.limit,
            "bytes_read_per_worker": self.bytes_read_per_worker,
            "scheduler_tasks": self.tasks,
            "scheduler_messages": MESSAGES_PER_TASK * self.tasks,
            "threads_without_block": self.threads_without_block,
        }


def _rounded(seconds: float) -> float:
    """Three digits: no prediction is better than that."""
    return float(f"{seconds:.3g}")
