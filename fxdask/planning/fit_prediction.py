"""A fit's plan and measured rates -> what the fit will take."""

from __future__ import annotations

from fxdask.planning.fit_plan import FitPlan
from fxdask.planning.prediction import SECONDS_PER_BLOCK, SECONDS_PER_TASK, Prediction, Rates

__all__ = ["MOST_SUMMARIES", "predict_fit"]

MOST_SUMMARIES = 64
"""So few summaries of blocks are merged by the caller, which takes less time than to merge them on workers."""
MERGES_PER_BLOCK = 1 / 7  # a tree in which every merge has eight parts
PASSES_BEFORE_BLOCKS = 2  # scan and norms


def predict_fit(plan: FitPlan, rates: Rates, *, draws_again: bool = True) -> Prediction:
    """What the fit of this plan takes on its resources, if each of their threads has these rates.

    A block takes the same time on every thread, so the blocks run in rounds; the last round may leave
    threads idle. Reading from one storage by many workers may be slower than measured by one.
    ``draws_again`` tells whether all weights are drawn once more for the importances of the features.
    """
    threads, n_blocks = plan.tasks_at_a_time, plan.n_blocks
    values = plan.n_nodes * plan.n_samples
    of_blocks = {
        "product": values * plan.n_features * plan.product_passes * rates.product,
        "sorting": values * rates.sorting,
        "reading": plan.bytes_read * rates.reading,
    }
    drawing = plan.n_nodes * plan.n_features * rates.weight
    on_workers = plan.resources is not None and not plan.resources.with_caller
    per_block = (sum(of_blocks.values()) + drawing) / n_blocks + (SECONDS_PER_BLOCK if on_workers else 0.0)
    n_ranges = -(-plan.n_samples // plan.samples_per_read)
    merges_per_block = MERGES_PER_BLOCK if n_blocks > MOST_SUMMARIES else 0
    n_tasks = round(n_blocks * (1 + merges_per_block)) + (PASSES_BEFORE_BLOCKS + 1) * n_ranges
    rounds = -(-n_blocks // threads)
    at_once = min(threads, n_ranges)
    selected = min(plan.n_nodes, plan.n_selected * plan.n_classes) * plan.n_samples
    reading = plan.sample_bytes * rates.reading
    parallel = min(threads, n_blocks)
    return Prediction(
        seconds_preparing=(plan.sample_bytes * rates.scanning + PASSES_BEFORE_BLOCKS * reading) / at_once,
        seconds_in_blocks=max(rounds * per_block, n_tasks * SECONDS_PER_TASK),
        seconds_finishing=rates.finishing
        + selected * rates.sorting
        + (selected * plan.n_features * rates.product + reading) / at_once
        + (drawing / parallel if draws_again else 0.0),
        seconds_per_block=per_block,
        seconds_by_limit={
            **{name: seconds / parallel for name, seconds in of_blocks.items()},
            "scheduling": n_tasks * SECONDS_PER_TASK,
        },
        bytes_read_per_worker=(plan.bytes_read + plan.bytes_read_besides) // _processes_with_blocks(plan),
        tasks=n_tasks,
        threads_without_block=max(0, threads - n_blocks),
    )


def _processes_with_blocks(plan: FitPlan) -> int:
    processes = plan.resources.processes if plan.resources else 1
    return max(1, min(processes, plan.n_blocks))
