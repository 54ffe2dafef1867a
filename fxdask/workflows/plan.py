"""Plan a fit before it runs: from its settings, its sizes and the memory of the processes that will run it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from dask.array import Array as DaskArray
from numpy.typing import NDArray

from fxdask.execution.client import active_client
from fxdask.execution.resources import measured_resources, resources_of
from fxdask.kernels.criteria.base import Need
from fxdask.kernels.criteria.relief import N_ANCHORS, N_NEIGHBOURS
from fxdask.kernels.criteria.table import CRITERIA
from fxdask.kernels.density.grid_sums import FEWEST_TABULATED
from fxdask.planning.fit_plan import FitPlan
from fxdask.planning.fit_search import plan_fit
from fxdask.planning.fit_size import FitSize, SampleFacts
from fxdask.planning.machine import ClusterShape
from fxdask.planning.pool_plan import plan_pool, plan_pool_relief
from fxdask.planning.table_plan import TABLES_ABOVE, plan_tables
from fxdask.sizes import projection_in_use
from fxdask.store.group import peek_header
from fxdask.store.sources import decoded_bytes, location_of
from fxdask.workflows.data import Samples
from fxdask.workflows.model import TrainingData
from fxdask.workflows.settings import FitSettings
from fxdask.workflows.staging import needs_copy

__all__ = ["FitOptions", "plan_model", "with_tables_if_large"]


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """Options of a fit that never change its result."""

    store: str | None = None
    overwrite: bool = False
    nodes_per_block: int | str = "auto"
    memory_limit: Any = None
    verbose: bool = False
    cluster: ClusterShape | None = None
    """The cluster to plan for; None: the connected one, or this machine."""

    @property
    def on_cluster(self) -> bool:
        """Whether the tasks run in other processes."""
        return self.cluster is not None or active_client() is not None


def plan_model(settings: FitSettings, data: TrainingData, options: FitOptions) -> FitPlan:
    """Plan a fit from sizes and memory; only the labels are read."""
    settings = with_tables_if_large(settings, data)
    samples, store, nodes_per_block = data.samples, options.store, options.nodes_per_block
    if store and not options.overwrite:
        # A resumed fit must keep the block size of its store.
        stored = (peek_header(store) or {}).get("nodes_per_block")
        nodes_per_block = stored if isinstance(stored, int) and stored > 0 else nodes_per_block
    # Without a store a Dask array is loaded into memory, and a local array is sent to every worker.
    to_load = isinstance(samples.handle, DaskArray) or (isinstance(samples.handle, np.ndarray) and options.on_cluster)
    extra_baseline = samples.n_bytes if to_load and store is None else 0
    needs = CRITERIA[settings.criterion].needs
    projection = projection_in_use(settings.projection, samples.n_features)
    compiles = needs != {Need.LOCATION_AND_SPREAD} or projection == "structured"
    rule, n_classes = settings.density_options.rule, len(data.counts)
    n_chosen = min(settings.n_nodes, settings.n_selected * n_classes)
    size = FitSize(
        n_nodes=settings.n_nodes,
        n_features=samples.n_features,
        class_counts=tuple(map(int, data.counts)),
        n_selected=settings.n_selected,
        n_ranked=settings.n_ranked(n_classes),
        kept=settings.kept,
        sorts_columns=CRITERIA[settings.criterion].orders_values,
        n_tables=_n_tables(settings, data.counts),
        learned_bytes=rule.learned_bytes(n_classes, n_chosen),
        projection=projection,
        keeps_tables=settings.keeps_tables,
    )
    plan = plan_fit(
        size,
        nodes_per_block,
        samples=_sample_facts(samples, settings, options),
        resources=(
            resources_of(options.cluster, extra_baseline, compiles=compiles)
            if options.cluster
            else measured_resources(options.memory_limit, extra_baseline, compiles=compiles)
        ),
    )
    if settings.keeps_tables:
        plan_tables(plan, n_chosen)  # refuses tasks that do not fit into memory
    if settings.selection == "joint":
        pool = plan_pool(plan, plan.n_ranked, in_store=store is not None)  # refuses a pool that is too large
        if Need.ROWS in needs:
            plan_pool_relief(plan, pool.n_candidates, min(N_ANCHORS, plan.n_samples), N_NEIGHBOURS)
    return plan


def with_tables_if_large(settings: FitSettings, data: TrainingData) -> FitSettings:
    """The settings, with tables instead of projections that are very large, if the samples can be read again.

    It depends on the sizes alone, so that every machine makes the same model.
    """
    if settings.keep_projections != "selected" or settings.why_no_tables():
        return settings
    n_nodes = min(settings.n_nodes, settings.n_selected * len(data.counts))
    is_large = 4 * n_nodes * data.samples.n_samples > TABLES_ABOVE
    at_address = location_of(data.samples.handle) is not None
    return replace(settings, keep_projections="table") if is_large and at_address else settings


def _n_tables(settings: FitSettings, counts: NDArray[np.int64]) -> int:
    """Density tables of the fitted model; densities of few samples have none if the rule mixes them."""
    rule, n_classes = settings.density_options.rule, len(counts)
    n_densities = rule.n_densities(n_classes, settings.n_selected, settings.n_nodes)
    if settings.selection == "joint":
        # Whatever the rule, every class uses all nodes, because they are shared.
        n_densities = n_classes * min(settings.n_nodes, settings.n_selected * n_classes)
    if not rule.needs_normal_scores:
        return n_densities
    return max(1, n_densities * int((counts > FEWEST_TABULATED).sum()) // n_classes)


def _sample_facts(samples: Samples, settings: FitSettings, options: FitOptions) -> SampleFacts:
    array, store = isinstance(samples.handle, (np.ndarray, DaskArray)), options.store
    copied = isinstance(samples.handle, DaskArray) or needs_copy(samples.handle) or (array and options.on_cluster)
    in_memory = array and not (store and copied)
    return SampleFacts(
        itemsize=samples.dtype.itemsize,
        in_memory=in_memory,
        read_bytes=0 if array else decoded_bytes(samples.handle),
        widened=settings.normalize is not None or not np.can_cast(samples.dtype, np.float32),
        probes_in_memory=store is None or not options.on_cluster,
    )
