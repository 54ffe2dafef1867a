"""The one description of a fit that every task gets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cached_property
from threading import Lock, local
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fxdask.evidence import Tally
from fxdask.kernels.preparation import Preparation
from fxdask.kernels.scratch import Scratch
from fxdask.plan import FitPlan
from fxdask.projecting import SampleTile, sample_tiles
from fxdask.store.model import ModelStore
from fxdask.store.samples import Source

__all__ = ["FitJob"]

_prepare_once = Lock()


@dataclass(frozen=True)
class FitJob:
    """Everything a block's task needs besides the samples: it enters a graph once, not once per block."""

    plan: FitPlan
    seed: int
    preparation: Preparation
    codes: NDArray[np.integer]
    priors: NDArray[np.float64]
    criterion: str
    location: str
    spread: str
    store: str | None = None
    probe_codes: NDArray[np.integer] | None = None

    def tiles(self, samples: Source, tally: Tally) -> Iterable[SampleTile]:
        """Every tile of prepared samples; where they are few, a process keeps them from block to block."""
        arguments = (samples, self.codes, self.plan, self.preparation, tally, self.scratch)
        if not self.plan.keeps_prepared:
            return sample_tiles(*arguments)
        with _prepare_once:
            if "_kept_tiles" not in self.__dict__:
                self.__dict__["_kept_tiles"] = list(sample_tiles(*arguments, lasting=True))
        return self.__dict__["_kept_tiles"]

    @property
    def scratch(self) -> Scratch:
        """Room for this thread's large arrays, from block to block."""
        threads = self.__dict__.setdefault("_threads", local())
        if not hasattr(threads, "scratch"):
            threads.scratch = Scratch()
        return threads.scratch

    @cached_property
    def opened_store(self) -> ModelStore | None:
        """The store to write into, opened once in every process."""
        return ModelStore.open(self.store, "r+", finished=False) if self.store else None

    def __getstate__(self) -> dict[str, Any]:
        """What travels to workers and into pickles: nothing that a process keeps for itself."""
        return {field.name: getattr(self, field.name) for field in fields(self)}
