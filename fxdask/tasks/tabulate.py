"""The task that tabulates the densities of some selected nodes, from samples that are read range by range."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.density.bandwidth import bandwidth_floor, bandwidths_of_counts
from fxdask.kernels.density.summed import SummedDensity, ValueSums
from fxdask.kernels.projection import ClassValues, ColumnValues, PackedProjection, class_runs
from fxdask.kernels.scratch import Scratch
from fxdask.kernels.statistics import SPREAD_SOURCES, ClassStatistics
from fxdask.sizes import packed_tile, row_ranges, rows_per_read
from fxdask.store.sources import Source
from fxdask.tasks.job import FitJob, tolerance_at
from fxdask.tasks.reading import read_ahead, read_range
from fxdask.tasks.streaming import streamed_statistics
from fxdask.tasks.telemetry import TaskCounters
from fxdask.tasks.threads import one_blas_thread

__all__ = ["NodeTables", "SelectedColumns", "TableJob", "tabulate_nodes", "training_values"]

TILES_PER_PRODUCT = 8


@dataclass(frozen=True, kw_only=True, eq=False)
class TableJob:
    """What all tasks need that tabulate the selected nodes; a graph holds it once."""

    fit: FitJob
    """With a streamed plan, whose values inside brackets are counted."""
    weights: NDArray[np.float32]
    """(u, feature) of all selected nodes"""
    used: tuple[tuple[int, ...], ...]
    """For each class the nodes u whose densities it uses."""
    bandwidth: str | float
    bandwidth_spread: str
    picked: NDArray[np.intp]
    """(picked,) ascending indices of the samples whose values are returned"""


@dataclass(frozen=True, kw_only=True)
class NodeTables:
    """The densities of some selected nodes; their size does not depend on the number of samples."""

    location: NDArray[np.float64]
    """(class, node)"""
    spread: NDArray[np.float64]
    bandwidth: NDArray[np.float64]
    n_fallbacks: int
    """Bandwidths whose spread came from a fallback."""
    densities: dict[tuple[int, int], SummedDensity]
    """(class, u) -> density"""
    picked: NDArray[np.float32]
    """(node, picked) values of the picked samples, in their order"""


def training_values(
    project: PackedProjection,
    samples: Source,
    n_samples: int,
    counters: TaskCounters,
    which: NDArray[np.intp],
    look_at: Callable[[NDArray], None] | None = None,
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Raw samples -> (node, sample) values at some nodes, one read after another, each with its first sample.

    Reads depend on the shape of the samples alone, and values have the bits of a product of all selected nodes.
    ``look_at`` is called with the raw samples of each read.
    """
    scratch, per_step = Scratch(), TILES_PER_PRODUCT * project.tile.samples
    for start, rows in read_ahead(samples, row_ranges(n_samples, rows_per_read(project.n_features)), counters):
        if look_at:
            look_at(rows)
        values = scratch("training values", (len(which), len(rows)))
        for low, high in row_ranges(len(rows), per_step):
            values[:, low:high] = project(rows[low:high], start + low, scratch)[which]
        del rows
        yield start, values


class SelectedColumns:
    """The projections of all samples onto some selected nodes, as columns to measure."""

    def __init__(
        self,
        job: TableJob,
        samples: Source,
        probes: Source | None,
        nodes: NDArray[np.intp],
        counters: TaskCounters,
    ) -> None:
        self._job, self._samples, self._probes = job, samples, probes
        self._nodes, self._counters = nodes, counters
        tile = packed_tile(len(job.weights), job.fit.plan.tile)
        self._project = PackedProjection(job.weights, job.fit.preprocessing, tile)

    @property
    def n_columns(self) -> int:
        """Number of nodes."""
        return len(self._nodes)

    @cached_property
    def tolerance(self) -> NDArray[np.float64]:
        """(class, node) spread at or below which a class is treated as constant at a node."""
        return tolerance_at(self._job.fit, self._job.weights)[:, self._nodes]

    def bounds(self, rows: NDArray[np.intp]) -> NDArray[np.float64]:
        """(row,) largest possible sum of absolute products, with 1 % added for rounding."""
        weights = np.abs(self._job.weights[self._nodes[rows]].astype(np.float64))
        return 1.01 * weights.sum(axis=1) * self._job.fit.preprocessing.largest

    def all_values(self) -> ClassValues:
        """Not for very many samples."""
        raise NotImplementedError

    def probed(self, rows: NDArray[np.intp]) -> ColumnValues:
        """(row, probe) values of the probed samples."""
        assert self._probes is not None, "classes with brackets have probes"
        assert self._job.fit.probe_codes is not None, "the classes of the probes are known"
        raw = read_range(self._probes, 0, len(self._job.fit.probe_codes))
        return self._by_class(self._project(raw, 0, Scratch())[self._nodes[rows]], self._job.fit.probe_codes)

    def chunks(self, rows: NDArray[np.intp]) -> Iterator[ColumnValues]:
        """(row, sample) values of all samples, one chunk for each read."""
        self._counters.passes += 1
        for start, values in self._values(self._nodes[rows]):
            yield self._by_class(values, self._job.fit.codes[start : start + values.shape[1]])

    def in_order(self) -> Iterator[tuple[int, NDArray[np.float32], NDArray[np.integer]]]:
        """First sample, (node, sample) values in the order of the samples, (sample,) codes, for each read."""
        self._counters.passes += 1
        for start, values in self._values(self._nodes):
            yield start, values, self._job.fit.codes[start : start + values.shape[1]]

    def _values(self, nodes: NDArray[np.intp]) -> Iterator[tuple[int, NDArray[np.float32]]]:
        return training_values(self._project, self._samples, self._job.fit.plan.n_samples, self._counters, nodes)

    def _by_class(self, values: NDArray[np.float32], codes: NDArray[np.integer]) -> ColumnValues:
        order, runs = class_runs(codes, self._job.fit.plan.n_classes)
        return ColumnValues(values[:, order], [[run] if run.stop > run.start else [] for run in runs])


@one_blas_thread()
def tabulate_nodes(job: TableJob, samples: Source, probes: Source | None, nodes: list[int]) -> NodeTables:
    """Raw samples, some selected nodes u -> their locations, spreads, bandwidths and densities."""
    fit, counters, which = job.fit, TaskCounters(), np.array(nodes)
    columns = SelectedColumns(job, samples, probes, which, counters)
    statistics = for_bandwidth = streamed_statistics(fit, columns, counters)
    if fit.location == "mean" or fit.spread != job.bandwidth_spread:
        # The origin of a table must lie amid the samples, where outliers may not move it.
        other = replace(fit, location="median", spread=job.bandwidth_spread)
        for_bandwidth = streamed_statistics(other, columns, counters)
    floor = np.array(
        [bandwidth_floor(own, tolerance, columns.tolerance) for own, tolerance in _pairs(for_bandwidth, columns)]
    )
    bandwidth = bandwidths_of_counts(fit.plan.class_counts, for_bandwidth.spread, floor, job.bandwidth)
    densities, picked = _densities(job, columns, which, bandwidth, for_bandwidth.location)
    expected = SPREAD_SOURCES.index(job.bandwidth_spread)
    return NodeTables(
        location=statistics.location,
        spread=statistics.spread,
        bandwidth=bandwidth,
        n_fallbacks=int((for_bandwidth.source != expected).sum()),
        densities=densities,
        picked=picked,
    )


def _pairs(
    statistics: ClassStatistics, columns: SelectedColumns
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """(node,) spread and tolerance of each class."""
    return zip(statistics.spread, columns.tolerance, strict=True)


def _densities(
    job: TableJob,
    columns: SelectedColumns,
    nodes: NDArray[np.intp],
    bandwidth: NDArray[np.float64],
    origin: NDArray[np.float64],
) -> tuple[dict[tuple[int, int], SummedDensity], NDArray[np.float32]]:
    """(class, node) bandwidths and origins -> densities of the classes that use the nodes, (node, picked) values."""
    wanted = [(k, row) for k, used in enumerate(job.used) for row, u in enumerate(nodes.tolist()) if u in used]
    sums = {(k, row): ValueSums(float(bandwidth[k, row]), float(np.float32(origin[k, row]))) for k, row in wanted}
    picked = np.empty((len(nodes), len(job.picked)), np.float32)
    for start, values, codes in columns.in_order():
        first, last = np.searchsorted(job.picked, (start, start + values.shape[1]))
        picked[:, first:last] = values[:, job.picked[first:last] - start]
        for k in range(job.fit.plan.n_classes):
            own = np.flatnonzero(codes == k)
            for row in (row for of_class, row in wanted if of_class == k):
                sums[k, row].absorb(values[row, own])
    # Sums are taken away one by one, because they are much larger than the densities.
    return {(k, int(nodes[row])): sums.pop((k, row)).density() for k, row in wanted}, picked
