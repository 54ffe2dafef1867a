"""The selected nodes of a fit: checked, projected, and assembled to a network."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fxdask.errors import FewUsableNodesWarning, InvalidInputError, ZeroSpreadWarning, warn_user
from fxdask.execution import fit as fit_graphs
from fxdask.execution.fit import project_selected
from fxdask.execution.graphs import SamplesHandle
from fxdask.kernels.network import DensityOptions, NetworkParameters, SelectedNodes, assemble, class_members
from fxdask.kernels.scorer import Scorer
from fxdask.kernels.selection import NO_NODE
from fxdask.kernels.statistics import SPREAD_SOURCES, shrunk_spread
from fxdask.kernels.temperature import held_out_columns, picked_slices, samples_of_class, temperature_of
from fxdask.planning.table_plan import TablePlan
from fxdask.progress import progress_bar
from fxdask.store.sources import Source
from fxdask.tasks.fit import FitSummary
from fxdask.tasks.job import FitJob, tolerance_at, weights_of
from fxdask.tasks.reread import TrainingSamples
from fxdask.tasks.tabulate import TableJob
from fxdask.tasks.threads import one_blas_thread

__all__ = [
    "Network",
    "TableRequest",
    "assemble_selected",
    "check_usable",
    "log_fallbacks",
    "tabulate_selected",
    "warn_of_zero_spreads",
]

log = logging.getLogger(__name__)


def check_usable(summary: FitSummary, classes: NDArray, wanted: int) -> None:
    """Refuse a class without a usable node, and warn if it has fewer than requested."""
    usable = (summary.top.nodes != NO_NODE).sum(axis=1)
    for label, count in zip(classes, usable, strict=True):
        if count == 0:
            raise InvalidInputError(
                f"no node separates class {label} from the others, because every projection is constant; "
                "check that the samples of X differ, and by more than float32 can represent at their size"
            )
        if count < wanted:
            warn_user(
                f"class {label} has only {count} usable nodes of the {wanted} requested; the model uses those",
                FewUsableNodesWarning,
            )


def warn_of_zero_spreads(source_counts: NDArray[np.int64], classes: NDArray, remedy: str) -> None:
    """Warn if most spreads of a class are zero within rounding, because its nodes are then chosen almost at random."""
    for label, counts in zip(classes, source_counts, strict=True):
        if 2 * counts[-1] > counts.sum():
            warn_user(
                f"class {label} counts as constant at {counts[-1]} of {counts.sum()} nodes; {remedy}",
                ZeroSpreadWarning,
            )


def log_fallbacks(spread: str, source_counts: NDArray[np.int64], bandwidth_fallbacks: dict[str, int]) -> None:
    """Log how many spreads and bandwidths came from a fallback."""
    for name, count in zip(SPREAD_SOURCES, source_counts.sum(axis=0), strict=True):
        if name != spread and count:
            log.info("%d of %d spreads were zero by %s, so %s was used", count, source_counts.sum(), spread, name)
    for name, count in bandwidth_fallbacks.items():
        if count:
            log.info("%d bandwidths of selected nodes used the fallback of the %s", count, name)


@dataclass(frozen=True)
class Network:
    """The parameters of a network, how many fallbacks they took, and training samples to fit a temperature with."""

    parameters: NetworkParameters
    fallbacks: dict[str, int]
    held_out: NDArray[np.float32]
    """(u, sample) values of some training samples"""
    held_out_codes: NDArray[np.intp]
    """(sample,) their classes"""

    def temperature(self, scorer: Scorer) -> float:
        """The temperature of the probabilities, from scores of the samples as if they had been left out."""
        with one_blas_thread():
            scores = scorer.held_out_scores(self.held_out, self.held_out_codes)
        known = np.isfinite(scores).all(axis=1)  # tables without samples do not know densities in wide gaps
        return temperature_of(scores[known], self.held_out_codes[known]) if known.any() else 1.0


def assemble_selected(
    job: FitJob, samples: SamplesHandle, chosen: NDArray[np.int64], options: DensityOptions, *, verbose: bool
) -> Network:
    """The selected nodes of all classes with their training values and bandwidths."""
    nodes = np.unique(chosen[chosen != NO_NODE])
    weights = weights_of(job, nodes)
    with progress_bar("selecting", shown=verbose) as progress:
        values = project_selected(job, samples, weights, progress)
    selected = SelectedNodes(
        nodes=nodes,
        weights=weights,
        values=values,
        class_slices=job.plan.class_slices,
        tolerance=tolerance_at(job, weights),
    )
    with one_blas_thread():  # so that the last bits do not depend on the number of cores
        columns, codes = held_out_columns(selected.class_slices)
        held_out = values[:, columns]  # before they are sorted
        parameters, fallbacks = assemble(job.preprocessing, selected, chosen, job.priors, options)
    return Network(parameters, fallbacks, held_out, codes)


@dataclass(frozen=True, kw_only=True)
class TableRequest:
    """What the tables of selected nodes are made of."""

    job: FitJob
    samples: SamplesHandle
    probes: SamplesHandle | None
    codes: NDArray[np.integer]
    """(sample,) class codes"""
    plan: TablePlan
    training: Source | None
    """The address of the training samples, to sum all kernels at points that tables do not decide; None: none."""
    digest: str
    """Of the training samples."""


def tabulate_selected(
    request: TableRequest, chosen: NDArray[np.int64], options: DensityOptions, *, verbose: bool
) -> Network:
    """The selected nodes of all classes with their bandwidths, and with sums on the workers instead of all values."""
    job, counts = request.job, request.job.plan.class_counts
    nodes = np.unique(chosen[chosen != NO_NODE])
    weights, member = weights_of(job, nodes), class_members(nodes, chosen, len(counts))
    columns, picked_codes = held_out_columns(job.plan.class_slices)
    picked = np.concatenate(
        [
            samples_of_class(request.codes, k, columns[picked_codes == k] - slices.start)
            for k, slices in enumerate(job.plan.class_slices)
        ]
    )
    table_job = TableJob(
        fit=replace(job, plan=request.plan.fit),
        weights=weights,
        used=tuple(map(tuple, options.rule.used_nodes(member))),
        bandwidth=options.bandwidth,
        bandwidth_spread=options.bandwidth_spread,
        picked=np.sort(picked),
    )
    groups = request.plan.groups(len(nodes))
    with progress_bar("selecting", shown=verbose) as progress:
        parts = fit_graphs.tabulate_selected(table_job, request.samples, request.probes, groups, progress)
    values = np.concatenate([part.picked for part in parts])[:, np.argsort(np.argsort(picked))]
    location, spread, bandwidth = (
        np.concatenate([getattr(part, name) for part in parts], axis=1) for name in ("location", "spread", "bandwidth")
    )
    slices, reread = picked_slices(job.plan.class_slices), None
    if request.training is not None:
        reread = TrainingSamples.of(replace(job, codes=request.codes), request.training, weights, request.digest)
    parameters = NetworkParameters(
        preprocessing=job.preprocessing,
        nodes=nodes,
        weights=weights,
        projections=np.concatenate([np.sort(values[:, own], axis=1) for own in slices], axis=1),
        class_slices=slices,
        bandwidth=bandwidth,
        location=location,
        spread=shrunk_spread(spread, counts) if options.shrink_spread else spread,
        member=member,
        log_priors=np.log(job.priors),
        rule=options.rule,
        tables={key: density for part in parts for key, density in part.densities.items()},
        reread=reread,
    )
    fallbacks = {"spread": sum(part.n_fallbacks for part in parts), "rule": 0}
    return Network(parameters, fallbacks, values, picked_codes)
