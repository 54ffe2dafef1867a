"""Measure how quick this machine is, by real blocks on a few of the samples: the rates that a prediction needs."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import dask
import numpy as np
from dask.array import Array as DaskArray
from dask.delayed import delayed
from dask.system import CPU_COUNT

from fxdask.execution.compute import compute
from fxdask.execution.importance import step_in_blocks
from fxdask.execution.scan import scan_samples
from fxdask.kernels.projection import DenseNodes
from fxdask.kernels.scratch import Scratch
from fxdask.kernels.weights import weight_block
from fxdask.planning.fit_plan import FitPlan
from fxdask.planning.fit_prediction import predict_fit
from fxdask.planning.fit_search import plan_fit
from fxdask.planning.machine import Resources
from fxdask.planning.prediction import Rates
from fxdask.sizes import MIB
from fxdask.tasks.fit import fit_block
from fxdask.tasks.job import FitJob
from fxdask.tasks.reading import read_range
from fxdask.tasks.telemetry import available_bytes
from fxdask.tasks.threads import one_blas_thread
from fxdask.workflows.fit import fit_model
from fxdask.workflows.job import checked_preprocessing, make_job
from fxdask.workflows.model import TrainingData
from fxdask.workflows.model_request import ModelRequest
from fxdask.workflows.plan import FitOptions
from fxdask.workflows.settings import FitSettings

__all__ = ["with_prediction"]

BYTES_OF_SAMPLES = 32 * MIB
FEWEST_SAMPLES = 64
MOST_SAMPLES = 16_384
MOST_TILES = 4
BLOCKS_PER_THREAD = 2
CALLS = 8
ROUNDS = 3


def with_prediction(plan: FitPlan, settings: FitSettings, data: TrainingData) -> FitPlan:
    """The plan with what its fit will take, from a few seconds of work on this machine."""
    few, reading = _few_samples(data)
    n_threads = min(CPU_COUNT, plan.tasks_at_a_time)
    with dask.config.set(num_workers=n_threads):
        rates = _rates(plan, settings, few, reading)
        return replace(plan, prediction=predict_fit(plan, rates, draws_again=not step_in_blocks(plan)))


def _few_samples(data: TrainingData) -> tuple[TrainingData, float]:
    """Some of the samples in memory, and the seconds that it takes to read one byte of them."""
    samples = data.samples
    n_rows = min(samples.n_samples, MOST_SAMPLES, max(FEWEST_SAMPLES, BYTES_OF_SAMPLES // (4 * samples.n_features)))
    started = time.perf_counter()
    if isinstance(samples.handle, DaskArray):
        rows = np.ascontiguousarray(samples.handle[:n_rows].compute(scheduler="threads"))
    else:
        rows = np.ascontiguousarray(read_range(samples.handle, 0, n_rows))
    reading = time.perf_counter() - started
    if not isinstance(samples.handle, (np.ndarray, DaskArray)):
        reading = min(reading, _middle(lambda: read_range(samples.handle, 0, n_rows)))
    # The first rows may all be of one class, so the classes are those of rows all over the samples.
    everywhere = np.linspace(0, samples.n_samples - 1, n_rows).astype(np.intp)
    present, codes = np.unique(data.codes[everywhere], return_inverse=True)
    few = TrainingData(
        replace(samples, handle=rows, n_samples=n_rows), data.classes[present], codes, np.bincount(codes)
    )
    return few, 0.0 if isinstance(samples.handle, np.ndarray) else reading / rows.nbytes


def _rates(plan: FitPlan, settings: FitSettings, few: TrainingData, reading: float) -> Rates:
    """Every rate, by work of the same kind as in the fit."""
    samples, threads, tile = few.samples, dask.config.get("num_workers"), plan.tile
    started = time.perf_counter()
    job = _small_job(plan, settings, few)
    at_once = min(threads, -(-samples.n_samples // job.plan.samples_per_read))
    scanning = (time.perf_counter() - started) * at_once / samples.n_bytes
    weights = weight_block(0, 0, tile.nodes, plan.n_features)
    rows = np.ones((tile.samples, plan.n_features), np.float32)

    def multiply(scratch: Scratch) -> None:
        list(DenseNodes(weights, 0, tile.nodes, tile.nodes, scratch).parts(rows))

    def draw(scratch: Scratch) -> None:
        weight_block(0, 0, tile.nodes, plan.n_features, out=scratch("weights", weights.shape))

    product, drawing = _seconds(multiply, threads), _seconds(draw, threads)
    fit = delayed(fit_block, pure=False)
    indices = range(job.plan.n_blocks)
    blocks = _middle(lambda: compute([fit(job, samples.handle, None, index) for index in indices], local=True))
    rates = Rates(
        product=product / (tile.nodes * tile.samples * plan.n_features),
        weight=drawing / weights.size,
        sorting=0.0,
        reading=reading,
        scanning=scanning,
        finishing=0.0,
    )
    of_product = plan.n_features * (rates.product + rates.weight / samples.n_samples)
    per_value = blocks * threads / (job.plan.n_nodes * samples.n_samples)
    rates = replace(rates, sorting=max(0.0, per_value - of_product))
    return replace(rates, finishing=_finishing(job, settings, few, rates))


def _small_job(plan: FitPlan, settings: FitSettings, few: TrainingData) -> FitJob:
    """A job of a few blocks on these samples, after both passes over them."""
    samples, threads = few.samples, dask.config.get("num_workers")
    scan = scan_samples(samples.handle, samples.n_samples, samples.n_features, settings.scanned_as)
    per_block = plan.tile.nodes * max(1, min(plan.nodes_per_block // plan.tile.nodes, MOST_TILES))
    request = ModelRequest(
        settings=settings.resolved(scan.summary, scan.quartiles),
        data=few,
        scan=scan,
        plan=_small_plan(plan, few, per_block * BLOCKS_PER_THREAD * threads, per_block),
        normalize_requested=settings.normalize,
    )
    return make_job(request, checked_preprocessing(request), samples.handle)


def _small_plan(plan: FitPlan, few: TrainingData, n_nodes: int, per_block: int) -> FitPlan:
    """The plan of a fit of so many nodes on these samples, on the threads of this machine."""
    counts, n_selected = tuple(few.counts.tolist()), min(plan.n_selected, n_nodes)
    size = replace(
        plan.size, n_nodes=n_nodes, class_counts=counts, n_selected=n_selected, n_ranked=min(plan.n_ranked, n_nodes)
    )
    machine = Resources(limit=available_bytes(), baseline=0, threads=dask.config.get("num_workers"))
    small = plan_fit(
        replace(size, kept=()), per_block, samples=replace(plan.samples, in_memory=True), resources=machine
    )
    # Sorting may take many times as long as selecting, which few values alone would not be worth compiling.
    return replace(small, selects=plan.selects_values)


def _finishing(job: FitJob, settings: FitSettings, few: TrainingData, rates: Rates) -> float:
    """Seconds of a small fit beyond what the rates explain: tables, bandwidths, the temperature."""
    n_nodes = max(settings.n_selected * len(few.classes), job.plan.tile.nodes)
    small = replace(settings, n_nodes=n_nodes, keep_projections="selected", keep_weights=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the few samples, which say nothing about the fit
        seconds = fit_model(small, few, FitOptions()).info["seconds"]
    plan = _small_plan(job.plan, few, n_nodes, n_nodes)
    return max(0.0, seconds - predict_fit(plan, rates, draws_again=not step_in_blocks(plan)).seconds)


def _seconds(work: Callable[[Scratch], object], threads: int) -> float:
    """Seconds of one call while so many threads make the same calls, each with its own buffers."""

    @one_blas_thread()
    def repeated() -> None:
        scratch = Scratch()
        for _ in range(CALLS):
            work(scratch)

    run = delayed(repeated, pure=False)
    return _middle(lambda: compute([run() for _ in range(threads)], local=True)) / CALLS


def _middle(work: Callable[[], object]) -> float:
    """The middle one of a few times, after a first one that loads libraries and fills caches."""
    seconds = []
    work()
    for _ in range(ROUNDS):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return median(seconds)
