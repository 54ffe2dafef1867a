"""Exact densities of a model that keeps tables: all kernels are summed while the training samples are read again."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fxdask.errors import InvalidInputError
from fxdask.kernels.density.exact import RunningDensity
from fxdask.kernels.preprocessing import Preprocessing
from fxdask.kernels.projection import PackedProjection
from fxdask.sizes import TileShape, packed_tile
from fxdask.store.columns import StagedCodes
from fxdask.store.sources import Source, location_of
from fxdask.tasks.job import FitJob
from fxdask.tasks.scan import digest_of_rows
from fxdask.tasks.tabulate import training_values
from fxdask.tasks.telemetry import TaskCounters
from fxdask.tasks.threads import one_blas_thread

__all__ = ["TrainingSamples"]


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingSamples:
    """The training samples of a model at their address, with all that their projections need."""

    samples: Source
    n_samples: int
    codes: NDArray[np.integer] | StagedCodes
    """(sample,) class codes"""
    weights: NDArray[np.float32]
    """(u, feature)"""
    preprocessing: Preprocessing
    tile: TileShape
    digest: str
    """Of all raw samples; changed ones are refused."""

    @classmethod
    def of(cls, job: FitJob, samples: Source, weights: NDArray[np.float32], digest: str) -> Self:
        """The samples of this job at their address, and the (u, feature) weights of all selected nodes."""
        return cls(
            samples=samples,
            n_samples=job.plan.n_samples,
            codes=job.codes,
            weights=weights,
            preprocessing=job.preprocessing,
            tile=packed_tile(len(weights), job.plan.tile),
            digest=digest,
        )

    @one_blas_thread()
    def __call__(
        self, values: NDArray[np.float32], used: list[list[int]], bandwidth: NDArray[np.float64]
    ) -> list[NDArray[np.float64]]:
        """(u, point) values, nodes of each class, (class, u) widths -> for each class (used node, point) log densities.

        One pass over the training samples sums every kernel.
        """
        sums = {(k, u): RunningDensity(values[u], float(bandwidth[k, u])) for k, of in enumerate(used) for u in of}
        project, found = PackedProjection(self.weights, self.preprocessing, self.tile), hashlib.sha256()
        everywhere = np.arange(len(self.weights))
        for start, projected in training_values(
            project,
            self.samples,
            self.n_samples,
            TaskCounters(),
            everywhere,
            lambda rows: found.update(digest_of_rows(rows)),
        ):
            codes = self.codes[start : start + projected.shape[1]]
            for k, of_class in enumerate(used):
                own = np.flatnonzero(codes == k)
                for u in of_class:
                    sums[k, u].absorb(np.sort(projected[u, own]))
        if found.hexdigest() != self.digest:
            raise InvalidInputError(
                f"the training samples at {location_of(self.samples)} have changed since the fit, and the model keeps "
                'only tables of them; restore these samples, or fit again with keep_projections="selected"'
            )
        return [np.array([sums[k, u].log_density() for u in of_class]) for k, of_class in enumerate(used)]
