"""The job of a fit: what every task gets, from the request and the scan of its samples."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fxdask.errors import InvalidInputError
from fxdask.execution.graphs import SamplesHandle
from fxdask.execution.importance import step_in_blocks
from fxdask.execution.scan import SampleScan, measure_class_norms
from fxdask.kernels.preprocessing import LARGEST_PRODUCT, Preprocessing, preprocessing_from
from fxdask.planning.fit_search import replanned
from fxdask.store.columns import StagedCodes
from fxdask.store.model import ModelStore
from fxdask.tasks.job import FitJob
from fxdask.workflows.model_request import ModelRequest

__all__ = ["checked_preprocessing", "make_job", "prior_values", "with_store"]

SMALLEST_PRIOR_RATIO = 1e-100  # so that no quotient of two priors overflows


def checked_preprocessing(request: ModelRequest) -> Preprocessing:
    """The preprocessing of this request's samples; samples out of range, and impossible priors, are refused."""
    prior_values(request.settings.priors, request.data.counts)
    scan, samples = request.scan, request.data.samples
    preprocessing = preprocessing_from(scan.summary, scan.quartiles, request.settings.normalize, samples.dtype)
    _check_range(preprocessing, scan, samples.n_features)
    return preprocessing


def make_job(
    request: ModelRequest, preprocessing: Preprocessing, samples: SamplesHandle, codes: StagedCodes | None = None
) -> FitJob:
    """The job of this request, without a store yet; the samples are read once more, for their norms.

    With ``codes`` the tasks read the class codes of their samples from a store.
    """
    settings, data = request.settings, request.data
    of_samples = data.codes if codes is None else codes
    return FitJob(
        plan=request.plan,
        seed=settings.seed,
        preprocessing=preprocessing,
        codes=of_samples,
        priors=prior_values(settings.priors, data.counts),
        class_norms=measure_class_norms(samples, of_samples, preprocessing, len(data.counts)),
        criterion=settings.node_criterion,
        location=settings.location,
        spread=settings.spread,
        shrink_spread=settings.shrink_spread,
        nodes_per_step=step_in_blocks(request.plan),
    )


def with_store(job: FitJob, store: ModelStore) -> FitJob:
    """The job with the store's path and the store's block size."""
    plan = job.plan
    if store.header["nodes_per_block"] != plan.nodes_per_block:
        plan = replanned(plan, store.header["nodes_per_block"])
    return replace(job, plan=plan, store=store.url)


def _check_range(preprocessing: Preprocessing, scan: SampleScan, n_features: int) -> None:
    fits = preprocessing.largest * n_features < LARGEST_PRODUCT
    if not (fits and np.isfinite(scan.summary.squares).all()):
        largest = max(np.abs(scan.summary.minimum).max(), np.abs(scan.summary.maximum).max())
        raise InvalidInputError(f"X has values up to {largest:.3g}, whose projections overflow float32; scale X down")


def prior_values(priors: str | tuple[float, ...], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """The priors of the classes: by their shares, equal, or given numbers, scaled to a sum of one."""
    if priors == "class_share":
        return counts / counts.sum()
    if priors == "equal":
        return np.full(len(counts), 1 / len(counts))
    values = np.asarray(priors, dtype=np.float64)
    if values.shape != (len(counts),):
        raise InvalidInputError(
            f"priors has {values.size} values but y has {len(counts)} classes; pass one prior per class"
        )
    ratios = values / values.max()
    if ratios.min() < SMALLEST_PRIOR_RATIO:
        raise InvalidInputError(
            f"priors run from {values.min():.3g} to {values.max():.3g}, but the largest may be at most "
            f"{1 / SMALLEST_PRIOR_RATIO:.0e} times the smallest; raise the smallest, or remove its class"
        )
    return ratios / ratios.sum()
