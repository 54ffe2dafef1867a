"""The score store: labels and class scores of a test set, one whole chunk per read."""

from __future__ import annotations

from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from fxdask.plan import rows_per_read
from fxdask.store.group import Mode, begin_group, finish_group, open_group, stored_array, write_header, writing
from fxdask.store.layout import SCORE_ARRAYS, create_array

__all__ = ["ScoreStore"]


class ScoreStore:
    """Labels (sample,) and log scores (sample, class) of one test set."""

    def __init__(self, url: str, group: zarr.Group, header: dict[str, Any]) -> None:
        self.url = url
        self.header = header
        self._group = group

    @classmethod
    def open(cls, url: str, mode: Mode = "r", *, finished: bool = True) -> ScoreStore:
        """Open the scores at this address."""
        return cls(url, *open_group(url, "scores", mode, finished=finished))

    @classmethod
    def create(cls, url: str, n_samples: int, n_inputs: int, classes: NDArray, facts: dict[str, Any]) -> ScoreStore:
        """Empty labels and scores, replacing what fxdask had there."""
        group = begin_group(url, "scores")
        sizes = {"sample": n_samples, "class": len(classes)}
        label_type = classes.dtype.str if classes.dtype.kind in "biuf" else "string"
        with writing(url):
            for spec in SCORE_ARRAYS:
                create_array(group, spec, sizes, rows_per_read(n_inputs), spec.dtype or label_type)
        header = write_header(group, url, "scores", {**facts, "n_samples": n_samples, "n_inputs": n_inputs})
        return cls(url, group, header)

    def write(self, start: int, labels: NDArray, scores: NDArray[np.float64]) -> None:
        """Write the chunk that begins at this sample."""
        with writing(self.url):
            rows = slice(start, start + len(labels))
            stored_array(self._group, self.url, "scores")[rows] = scores
            stored_array(self._group, self.url, "labels")[rows] = (
                labels if labels.dtype.kind in "biuf" else labels.astype(object)
            )

    def finish(self, **facts: Any) -> None:
        """Mark the scores as complete."""
        finish_group(self._group, self.url, self.header, **facts)
