"""The score store: labels, class scores and likelihoods of a test set, one chunk for each range of samples."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fxdask.errors import StoreFormatError
from fxdask.store.arrays import ArrayStore
from fxdask.store.group import (
    begin_group,
    finish_group,
    has_chunk,
    write_header,
    write_together,
    writing_part,
)
from fxdask.store.layout import (
    CLASS,
    FORMAT_OF_COORDINATES,
    LOG_LIKELIHOOD,
    SAMPLE,
    SCORE_ARRAYS,
    NewArray,
    create_arrays,
)
from fxdask.store.retry import reading, retried, writing

__all__ = ["ScoreStore"]


class ScoreStore(ArrayStore):
    """Labels (sample,) and log scores (sample, class) of one test set, by choice also its log likelihoods (sample,)."""

    kind = "scores"
    specs: ClassVar = {spec.name: spec for spec in SCORE_ARRAYS}

    @classmethod
    @retried
    def create(
        cls,
        url: str,
        n_samples: int,
        rows_per_chunk: int,
        classes: NDArray,
        facts: dict[str, Any],
        *,
        likelihood: bool = False,
    ) -> ScoreStore:
        """Create empty labels and scores, with log likelihoods if wanted, and replace an earlier fxdask store."""
        group = begin_group(url, "scores", (spec.name for spec in SCORE_ARRAYS))
        sizes = {"sample": n_samples, "class": len(classes)}
        label_type = classes.dtype.str if classes.dtype.kind in "biuf" else "string"
        plain = classes if label_type != "string" else classes.astype(object)
        new = [
            NewArray(
                spec=spec,
                sizes=sizes,
                chunk_length=rows_per_chunk,
                dtype=spec.dtype or label_type,
                values=plain if spec.name == CLASS else None,
            )
            for spec in SCORE_ARRAYS
            if likelihood or spec.name != LOG_LIKELIHOOD
        ]
        with writing(url):
            create_arrays(group, new)
        sized = {"n_samples": n_samples, "rows_per_chunk": rows_per_chunk, "likelihood": likelihood}
        return cls(url, group, write_header(group, url, "scores", {**facts, **sized}))

    @property
    def names(self) -> list[str]:
        """The arrays with one chunk for each range; a store of an earlier fxdask lacks some."""
        left_out = {CLASS} if self.header.get("likelihood") else {CLASS, LOG_LIKELIHOOD}
        if self.header["format"] < FORMAT_OF_COORDINATES:
            left_out.add(SAMPLE)
        return [spec.name for spec in SCORE_ARRAYS if spec.name not in left_out]

    @retried
    def write_chunk(
        self, index: int, labels: NDArray, scores: NDArray[np.float64], likelihood: NDArray[np.float64] | None = None
    ) -> None:
        """Write one chunk of every array; it is done as soon as all files exist."""
        rows = self._rows(index, len(labels))
        plain = labels if labels.dtype.kind in "biuf" else labels.astype(object)
        parts = [(self.array("scores"), rows, scores), (self.array("labels"), rows[:1], plain)]
        if likelihood is not None:
            parts.append((self.array(LOG_LIKELIHOOD), rows[:1], likelihood))
        if SAMPLE in self.names:
            parts.append((self.array(SAMPLE), rows[:1], np.arange(rows[0].start, rows[0].stop)))
        with writing_part(self.group, self.url, self.header):
            write_together(parts)

    def is_done(self, index: int) -> bool:
        """Whether the files of a chunk exist in every array; Zarr never leaves a part of a file."""
        arrays = map(self.array, self.names)
        return all(has_chunk(array, (index, *(0,) * (array.ndim - 1))) for array in arrays)

    @retried
    def read_done(self, index: int, classes: NDArray) -> NDArray[np.float64] | None:
        """(sample, class) one chunk of scores; None if it is missing, damaged, or does not match its labels."""
        if not self.is_done(index):
            return None
        rows = self._rows(index, self.header["rows_per_chunk"])
        try:
            with reading(self.url, "scores"):
                scores = np.asarray(self.array("scores")[rows])
            with reading(self.url, "labels"):
                labels = np.asarray(self.array("labels")[rows[:1]])
        except StoreFormatError:
            return None
        if classes.dtype.kind in "UO":
            labels, classes = labels.astype(object), classes.astype(object)
        return scores if np.array_equal(labels, classes[scores.argmax(axis=1)]) else None

    @retried
    def read_likelihood(self, index: int) -> NDArray[np.float64] | None:
        """(sample,) one chunk of log likelihoods; None if it is damaged."""
        rows, _ = self._rows(index, self.header["rows_per_chunk"])
        try:
            with reading(self.url, LOG_LIKELIHOOD):
                return np.asarray(self.array(LOG_LIKELIHOOD)[rows])
        except StoreFormatError:
            return None

    @retried
    def n_done(self) -> int:
        """Number of chunks that exist in every array, as an estimate: each array's chunks are counted separately."""
        return min(self.array(name).nchunks_initialized for name in self.names)

    @retried
    def finish(self, **facts: Any) -> None:
        """Mark the scores as finished, after all chunks are written."""
        for name in self.names:
            self.check_complete(name, "run the same call again")
        finish_group(self.group, self.url, self.header, **facts)

    def check_finished(self) -> None:
        """Refuse finished scores that lack a chunk, or that have one of another length or checksum."""
        for name in self.names:
            self.check_complete(name)

    def _rows(self, index: int, length: int) -> tuple[slice, slice]:
        start = index * self.header["rows_per_chunk"]
        return slice(start, start + length), slice(None)
