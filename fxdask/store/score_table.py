"""The score table: labels, class scores and likelihoods of a test set as Parquet, one file per range of samples.

A table is a folder. ``_fxdask.json`` is written first and says which job writes there; ``_SUCCESS`` is
written last and says what the table holds. Readers of Parquet ignore both, because of the underscore.
"""

from __future__ import annotations

import io
import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from fxdask.errors import InvalidInputError, StoreExistsError, StoreFormatError, StoreUnfinishedError, StoreWriteError
from fxdask.store.arrow import arrow
from fxdask.store.card import CARD, model_card
from fxdask.store.damage import check_count, damaged
from fxdask.store.paths import files_at, is_local, is_partial
from fxdask.store.retry import reading, retried, writing

__all__ = [
    "KIND",
    "ScoreTable",
    "is_table",
    "peek_table",
    "refuse_foreign_files_of_table",
    "remove_table",
    "score_columns",
]

KIND = "score table"
FORMAT = 1
HEADER, SUCCESS = "_fxdask.json", "_SUCCESS"
LABEL, LOG_LIKELIHOOD = "label", "log_likelihood"
PART = re.compile(r"scores-[0-9]{5,}\.parquet")
LARGEST_HEADER = 2**28


def score_columns(classes: NDArray, ids: list[str], *, likelihood: bool) -> list[str]:
    """The columns of a table: ids, label, one score per class, and the likelihood if wanted; each name once."""
    own = [LABEL, *(f"score_{label}" for label in classes.tolist()), *([LOG_LIKELIHOOD] if likelihood else [])]
    taken = sorted(set(ids) & set(own))
    if taken:
        raise InvalidInputError(
            f"the id column {taken[0]!r} has the name of a column of the result; rename it in X, or leave it out"
        )
    return [*ids, *own]


def is_table(url: str) -> bool:
    """Whether a folder has a file that says that it is a score table, finished or not."""
    return bool({SUCCESS, HEADER} & set(_entries(url) or []))


@retried
def peek_table(url: str) -> dict[str, Any] | None:
    """The header of the score table at this path or URL; None if nothing is there. Anything else is an error."""
    with reading(url, "the header"):
        names = _entries(url)
        if names == []:
            return None
        for name, finished in ((SUCCESS, True), (HEADER, False)):
            header = _read_header(url, name) if names is not None and name in names else None
            if header is not None:
                _check_header(url, header)
                return header | {"finished": finished}
    raise StoreExistsError(f"{url} exists but is not a score table of fxdask; choose another path")


def _read_header(url: str, name: str) -> dict[str, Any] | None:
    """The content of a header; None if fxdask did not write it."""
    files, folder = files_at(url)
    if files.size(f"{folder}/{name}") > LARGEST_HEADER:
        return None
    try:
        header = json.loads(files.cat_file(f"{folder}/{name}"))
    except (ValueError, RecursionError, FileNotFoundError):
        return None
    return header if isinstance(header, dict) and header.get("kind") == KIND else None


def _check_header(url: str, header: dict[str, Any]) -> None:
    """Refuse a header that lacks what every table has."""
    for name, least in (("n_samples", 0), ("rows_per_file", 1)):
        check_count(url, name, header.get(name), least)
    columns = header.get("columns")
    if not isinstance(columns, list) or not all(isinstance(name, str) for name in columns):
        raise damaged(url, f"its header has columns {columns!r:.60} instead of a list of names")
    if not isinstance(header.get("job"), str):
        raise damaged(url, "its header does not name its job")


def _entries(url: str) -> list[str] | None:
    """The names in a folder, empty if it does not exist; None if this is a file."""
    files, folder = files_at(url)
    if is_local(url) and os.path.lexists(url) and not Path(url).is_dir():
        return None
    try:
        return [name.rstrip("/").rpartition("/")[2] for name in files.ls(folder, detail=False)]
    except FileNotFoundError:
        return []


def _is_own(name: str) -> bool:
    return name in (HEADER, SUCCESS) or bool(PART.fullmatch(name)) or is_partial(name)


def refuse_foreign_files_of_table(url: str) -> None:
    """Refuse to replace a table whose folder holds files that fxdask did not write."""
    foreign = sorted(name for name in _entries(url) or [] if not _is_own(name))
    if foreign:
        raise StoreExistsError(
            f"{url} holds {', '.join(foreign[:3])}, which fxdask did not write; move that away, or choose another path"
        )


def remove_table(url: str) -> None:
    """Remove the files of a table, those that say what it is last; other files stay."""
    files, folder = files_at(url)
    own = [name for name in _entries(url) or [] if _is_own(name)]
    for name in sorted(own, key=lambda name: (name == HEADER, name == SUCCESS)):
        with suppress(FileNotFoundError):
            files.rm_file(f"{folder}/{name}")
    if is_local(url):
        with suppress(OSError):  # a folder that is not empty stays
            Path(url).rmdir()


class ScoreTable:
    """Labels and log scores of one test set, by choice with ids and log likelihoods; a file per range of samples."""

    def __init__(self, url: str, header: dict[str, Any]) -> None:
        self.url = url
        self.header = header

    @classmethod
    def open(cls, url: str, *, finished: bool = True) -> ScoreTable:
        """Open the table at this URL; with ``finished``, refuse an unfinished one."""
        header = peek_table(url)
        if header is None:
            raise StoreFormatError(f"there is no score table at {url}; check the path")
        if finished and not header["finished"]:
            raise StoreUnfinishedError(f"{url} is unfinished; run the same call again to finish it")
        return cls(url, header)

    @classmethod
    @retried
    def create(cls, url: str, facts: dict[str, Any]) -> ScoreTable:
        """Create an empty table and replace an earlier one; the facts say its job, rows, classes and columns."""
        with writing(url):
            refuse_foreign_files_of_table(url)
            remove_table(url)
            header = {**facts, "kind": KIND, "format": FORMAT}
            if is_local(url):
                Path(url).mkdir(parents=True, exist_ok=True)
            _write_file(url, HEADER, json.dumps(header).encode())
        return cls(url, header | {"finished": False})

    @property
    def n_files(self) -> int:
        """Number of files; a table without samples has one file without rows."""
        return max(1, -(-self.header["n_samples"] // self.header["rows_per_file"]))

    @retried
    def write_chunk(
        self,
        index: int,
        labels: NDArray,
        scores: NDArray[np.float64],
        likelihood: NDArray[np.float64] | None = None,
        ids: Any = None,
    ) -> None:
        """Write one file: labels, scores, likelihoods, and an Arrow table of ids; it is done as soon as it exists."""
        pa = arrow()
        plain = labels if labels.dtype.kind in "biuf" else labels.astype(object)
        columns = [plain, *scores.T, *([] if likelihood is None else [likelihood])]
        arrays = [*([] if ids is None else ids.columns), *map(pa.array, columns)]
        mark = json.dumps({"job": self.header["job"], "index": index})
        table = pa.table(arrays, names=self.header["columns"]).replace_schema_metadata({"fxdask": mark})
        buffer = io.BytesIO()
        pa.parquet.write_table(table, buffer, write_page_checksum=True)
        self._check_writable()
        with writing(self.url):
            _write_file(self.url, _part(index), buffer.getvalue())

    def _check_writable(self) -> None:
        """Refuse a late write: a worker that lost its connection does not know that its job has ended."""
        header = peek_table(self.url)
        if header is None or header["finished"] or header.get("job") != self.header["job"]:
            raise StoreWriteError(
                f"{self.url} was finished, moved or replaced while this part was computed; "
                "run the same call again if the result is incomplete"
            )

    @retried
    def read_done(self, index: int, classes: NDArray) -> NDArray[np.float64] | None:
        """(sample, class) scores of one file; None if it is missing, damaged, of another job, or does not match."""
        table = self._read(index, [LABEL, *(f"score_{label}" for label in classes.tolist())])
        if table is None:
            return None
        scores = np.stack([column.to_numpy() for column in table.columns[1:]], axis=1)
        labels = table.column(LABEL).to_numpy()
        if classes.dtype.kind in "UO":
            labels, classes = labels.astype(object), classes.astype(object)
        return scores if np.array_equal(labels, classes[scores.argmax(axis=1)]) else None

    @retried
    def read_likelihood(self, index: int) -> NDArray[np.float64] | None:
        """(sample,) log likelihoods of one file; None if it is damaged."""
        table = self._read(index, [LOG_LIKELIHOOD])
        return None if table is None else table.column(LOG_LIKELIHOOD).to_numpy()

    def _read(self, index: int, columns: list[str]) -> Any:
        """Columns of one file as an Arrow table; None if the file is not there, damaged, or of another job."""
        files, folder = files_at(self.url)
        try:
            content = io.BytesIO(files.cat_file(f"{folder}/{_part(index)}"))
            with arrow().parquet.ParquetFile(content, page_checksum_verification=True) as opened:
                mark = json.loads((opened.metadata.metadata or {}).get(b"fxdask", b"{}"))
                if mark != {"job": self.header["job"], "index": index}:
                    return None
                return opened.read(columns=columns, use_threads=False).select(columns)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # of the storage; errors of pyarrow have no number
            return None

    def damaged_files(self, *, whole: bool) -> list[str]:
        """One description per missing or damaged file; all of its columns are read, or its labels alone."""
        columns = self.header["columns"] if whole else [LABEL]
        return [
            f"{_part(index)} is missing or damaged"
            for index in range(self.n_files)
            if self._read(index, columns) is None
        ]

    def check_finished(self) -> None:
        """Refuse a finished table that lacks a file, or that has a damaged one."""
        wrong = self.damaged_files(whole=False)
        if wrong:
            raise damaged(self.url, wrong[0], "restore it from a copy, or pass overwrite=True to score again")

    def unknown_files(self) -> list[str]:
        """Files in its folder that fxdask did not write."""
        return sorted(name for name in _entries(self.url) or [] if not _is_own(name))

    @retried
    def n_done(self) -> int:
        """Number of files that exist."""
        return sum(map(bool, map(PART.fullmatch, _entries(self.url) or [])))

    @retried
    def finish(self, **facts: Any) -> None:
        """Mark the table as finished, after all files are written."""
        missing = {_part(index) for index in range(self.n_files)} - set(_entries(self.url) or [])
        if missing:
            raise damaged(self.url, f"{min(missing)} is missing", "run the same call again")
        header = {name: value for name, value in self.header.items() if name != "finished"}
        with writing(self.url):
            _write_file(self.url, SUCCESS, json.dumps(header | facts | {CARD: model_card(header | facts)}).encode())


def _part(index: int) -> str:
    return f"scores-{index:05d}.parquet"


def _write_file(url: str, name: str, content: bytes) -> None:
    """Write a whole file at once: readers never find a part of it."""
    files, folder = files_at(url)
    if not is_local(url):
        files.pipe_file(f"{folder}/{name}", content)
        return
    draft = Path(folder, f".{name}.{uuid4().hex}.partial")
    try:
        draft.write_bytes(content)
        draft.replace(Path(folder, name))
    except OSError:
        with suppress(OSError):  # on a full disk, a part of a file would only take space
            draft.unlink(missing_ok=True)
        raise
