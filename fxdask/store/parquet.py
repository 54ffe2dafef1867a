"""Parquet tables: their files, row groups and columns, as the footers describe them.

Rows are numbered through all files of a folder, in the order of the file names. A number in a name
counts as a number, so that ``part.2`` comes before ``part.10``.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from fxdask.errors import InvalidInputError
from fxdask.store.arrow import arrow, listed, open_parquet_file, parquet_errors
from fxdask.store.paths import file_version, files_at, is_local
from fxdask.store.retry import reading, retried

__all__ = [
    "ParquetAddress",
    "ParquetTable",
    "RowGroup",
    "TableColumn",
    "is_parquet",
    "is_parquet_name",
    "open_parquet",
    "row_groups",
]

SUFFIXES = (".parquet", ".parq", ".pq")
MAGIC = b"PAR1"
FOOTERS_AT_A_TIME = 8
MOST_PAGE_HEADERS = 2**10
OTHER_SUFFIXES = (".npy", ".zarr")
ZARR_METADATA = ("zarr.json", ".zarray", ".zgroup")


@dataclass(frozen=True)
class TableColumn:
    """The name of a column, its type in Arrow's words, and its NumPy type if it holds numbers."""

    name: str
    type: str
    dtype: str | None
    """In NumPy's notation."""


@dataclass(frozen=True)
class TableFile:
    """One file: its path, and the rows of each of its row groups."""

    path: str
    group_rows: tuple[int, ...]
    differing: Mapping[str, str] = field(default_factory=dict)
    """By column, how its type differs from that in the first file."""


@dataclass(frozen=True)
class RowGroup:
    """One row group: its file, its index in the file, and its first row and length in the whole table."""

    path: str
    index: int
    start: int
    n_rows: int


@dataclass(frozen=True, kw_only=True)
class ParquetAddress:
    """Chosen columns of Parquet files, with all that a task on any worker needs to read a range of rows."""

    url: str
    columns: tuple[str, ...]
    dtype: str | None
    """The common type of the columns in NumPy's notation; None if some column does not hold numbers."""
    n_rows: int
    decoded_bytes: int
    """Memory of the largest row group while it is decoded."""
    version: str
    """A digest of the sizes and times of the files, or a random one: addresses of changed files are not equal."""
    files: tuple[TableFile, ...] = field(compare=False, repr=False)

    @property
    def rows_per_group(self) -> int:
        """Rows of every row group, of which only the last may be shorter; 0 if they differ."""
        lengths = [group.n_rows for group in row_groups(self)]
        regular = bool(lengths) and len(set(lengths[:-1])) <= 1 and lengths[-1] <= lengths[0]
        return lengths[0] if regular else 0


def row_groups(source: ParquetAddress) -> list[RowGroup]:
    """All row groups that have rows, in order."""
    groups, start = [], 0
    for file in source.files:
        for index, n_rows in enumerate(file.group_rows):
            if n_rows:
                groups.append(RowGroup(file.path, index, start, n_rows))
            start += n_rows
    return groups


@dataclass(frozen=True, kw_only=True)
class ParquetTable:
    """Parquet files by path or URL: their columns, and which of these were chosen."""

    url: str
    schema: tuple[TableColumn, ...] = field(repr=False)
    files: tuple[TableFile, ...] = field(repr=False)
    group_bytes: int = field(repr=False, compare=False)
    """Bytes of all columns in the row group that has the most rows, before compression."""
    chosen: tuple[str, ...] | None = None
    excluded: frozenset[str] = frozenset()
    """Columns that are no samples unless they are chosen: an index of pandas, labels, ids."""
    version: str = field(default="", repr=False)

    @property
    def n_rows(self) -> int:
        """Rows of all files."""
        return sum(map(sum, (file.group_rows for file in self.files)))

    @property
    def names(self) -> tuple[str, ...]:
        """The chosen columns; all but the excluded ones if none were chosen."""
        every = tuple(column.name for column in self.schema) if self.chosen is None else self.chosen
        return tuple(name for name in every if name not in self.excluded)

    def choose(self, columns: Sequence[str]) -> ParquetTable:
        """The same files with these columns, in this order."""
        if isinstance(columns, str) or not all(isinstance(name, str) for name in columns):
            raise InvalidInputError(f"columns must be a list of names, not {columns!r}")
        known, chosen = {column.name for column in self.schema}, tuple(columns)
        unknown = [name for name in chosen if name not in known]
        if unknown:
            every = _nearest_first(sorted(known), unknown[0])
            raise InvalidInputError(f"{self.url} has no column {listed(unknown)}; its columns are {listed(every, 10)}")
        repeated = _repeated(column.name for column in self.schema) & set(chosen)
        if repeated:
            raise InvalidInputError(
                f"{self.url} has several columns named {listed(sorted(repeated))}; write it with a name for each"
            )
        repeated = _repeated(chosen)
        if repeated:
            raise InvalidInputError(
                f"column {listed(sorted(repeated))} is chosen more than once; choose each column once"
            )
        if not chosen:
            raise InvalidInputError("no columns were chosen; choose at least one")
        return replace(self, chosen=chosen, excluded=frozenset())

    def without(self, columns: Sequence[str]) -> ParquetTable:
        """The same files without these columns."""
        rest = replace(self, excluded=self.excluded | set(columns))
        self.choose(rest.names)  # refuses a table without any other column
        return rest

    def column_types(self) -> list[TableColumn]:
        """The chosen columns with their types."""
        by_name = {column.name: column for column in self.schema}
        return [by_name[name] for name in self.names]

    def address(self) -> ParquetAddress:
        """The address of the chosen columns, which must have the same types in all files."""
        self.choose(self.names)  # refuses files with two columns of one name
        columns = self.column_types()
        for file in self.files:
            for column in columns:
                if column.name in file.differing:
                    raise InvalidInputError(
                        f"column {column.name!r} has type {column.type} in {self.files[0].path} "
                        f"but {file.differing[column.name]} in {file.path}; write all files with the same columns"
                    )
        types = [column.dtype for column in columns]
        dtype = None if None in types else np.result_type(*map(np.dtype, types))  # type: ignore[arg-type]
        return ParquetAddress(
            url=self.url,
            columns=self.names,
            dtype=None if dtype is None else dtype.str,
            n_rows=self.n_rows,
            decoded_bytes=self._decoded_bytes(columns),
            version=self.version,
            files=self.files,
        )

    def _decoded_bytes(self, columns: Sequence[TableColumn]) -> int:
        """At most so many bytes has the largest row group: as Arrow's columns, and as it is stored."""
        most = max((rows for file in self.files for rows in file.group_rows), default=0)
        in_arrow = most * sum(np.dtype(column.dtype).itemsize for column in columns if column.dtype is not None)
        return in_arrow + min(max(0, self.group_bytes), in_arrow + len(columns) * MOST_PAGE_HEADERS)


def _nearest_first(names: Sequence[str], wanted: str) -> list[str]:
    """The names that look like a wanted one, and then the others, so that a list that is cut shows what was meant."""
    near = get_close_matches(wanted, names)
    return [*near, *(name for name in names if name not in near)]


def _repeated(names: Iterable[str]) -> set[str]:
    return {name for name, count in Counter(names).items() if count > 1}


# Opening


def is_parquet_name(path: str | Path) -> bool:
    """Whether a path or URL is named like Parquet."""
    return str(path).rstrip("/").lower().endswith(SUFFIXES)


def is_parquet(path: str | Path) -> bool:
    """Whether there is a Parquet file, or a folder of such files, at this path or URL."""
    text = str(path)
    if is_local(text):
        local = Path(text).expanduser()
        if local.is_dir():
            is_zarr = any((local / name).exists() for name in ZARR_METADATA)
            return not is_zarr and any(map(is_parquet_name, _parquet_files(str(local))))
        return local.is_file() and _begins_like_parquet(local)
    if text.rstrip("/").lower().endswith((*SUFFIXES, *OTHER_SUFFIXES)):
        return is_parquet_name(text)
    files, folder = files_at(text)
    try:
        return any(is_parquet_name(name) for name in files.ls(folder, detail=False))
    except Exception:  # of any client of an object store; the call that reads the address reports it
        return False


def _begins_like_parquet(file: Path) -> bool:
    if is_parquet_name(file):
        return True
    try:
        with file.open("rb") as stream:
            return stream.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def _parquet_files(url: str) -> dict[str, Any]:
    """All files at a path or URL in their order, without hidden ones, each with what its storage says about it."""
    files, path = files_at(url)
    if is_parquet_name(path) and files.isfile(path):  # servers of single files cannot list
        return {path: files.info(path)}
    found = files.find(path, detail=True)
    visible = [name for name in found if not _is_hidden(name.removeprefix(path))]
    return {name: found[name] for name in sorted(visible, key=_natural_order)}


def _version(found: Mapping[str, Any]) -> str:
    versions = [(name, info.get("size"), file_version(info)) for name, info in found.items()]
    if any(version is None for *_, version in versions):
        return uuid4().hex
    return hashlib.sha256(repr(versions).encode()).hexdigest()


def _is_hidden(inside: str) -> bool:
    """Whether a part of this path begins with _ or a dot, which marks what is no data, such as _SUCCESS."""
    return any(part.startswith(("_", ".")) for part in inside.split("/"))


def _natural_order(name: str) -> list[tuple[int, str]]:
    """Key to sort names by, in which numbers count as numbers."""
    return [(int(word), "") if word.isdigit() else (-1, word) for word in re.split(r"([0-9]+)", name)]


@retried
def open_parquet(path: str | Path, columns: Sequence[str] | None = None) -> ParquetTable:
    """A path or URL of a Parquet file or of a folder of such files -> its table; only the footers are read."""
    text = str(path)
    url = str(Path(text).expanduser().absolute()) if is_local(text) else text.rstrip("/")
    with parquet_errors(url), reading(url, "the list of files"):
        found = _parquet_files(url)
    names = list(found)
    if not names:
        raise InvalidInputError(f"there is no Parquet file at {text}; check the path")
    version = _version(found)
    with ThreadPoolExecutor(FOOTERS_AT_A_TIME) as pool:
        footers = list(pool.map(lambda name: _read_footer(url, name, version), names))
    with parquet_errors(url):
        table = _table_of(url, dict(zip(names, footers, strict=True)), version)
    return table if columns is None else table.choose(columns)


def _table_of(url: str, footers: Mapping[str, Any], version: str) -> ParquetTable:
    """The footers of all files by name -> their table."""
    first = next(iter(footers.values()))
    files = tuple(
        TableFile(name, _group_rows(footer), {} if footer.schema.equals(first.schema) else _differing(first, footer))
        for name, footer in footers.items()
    )
    largest = max(footers.values(), key=lambda footer: max(_group_rows(footer), default=0))
    return ParquetTable(
        url=url,
        schema=_columns_of(first),
        files=files,
        group_bytes=_group_bytes(largest),
        excluded=_index_columns(first),
        version=version,
    )


def _read_footer(url: str, name: str, version: str) -> Any:
    with parquet_errors(name), open_parquet_file(url, name, version) as opened:
        return opened.metadata


def _group_rows(footer: Any) -> tuple[int, ...]:
    return tuple(footer.row_group(index).num_rows for index in range(footer.num_row_groups))


def _group_bytes(footer: Any) -> int:
    """Bytes of all columns in the row group that has the most rows, before compression."""
    rows = _group_rows(footer)
    # The bytes of a single column are not asked for: pyarrow ends the whole process if that part is damaged.
    return footer.row_group(int(np.argmax(rows))).total_byte_size if rows else 0


def _columns_of(footer: Any) -> tuple[TableColumn, ...]:
    pa = arrow()

    def column(field: Any) -> TableColumn:
        kind = field.type
        numeric = pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)
        text = "category" if pa.types.is_dictionary(kind) else str(kind)
        return TableColumn(field.name, text, np.dtype(kind.to_pandas_dtype()).str if numeric else None)

    return tuple(map(column, footer.schema.to_arrow_schema()))


def _index_columns(footer: Any) -> frozenset[str]:
    """The columns that pandas wrote as the index of a DataFrame, and would read as its index again."""
    stored = footer.schema.to_arrow_schema().pandas_metadata
    found = stored.get("index_columns") if isinstance(stored, dict) else None
    return frozenset(name for name in found if isinstance(name, str)) if isinstance(found, list) else frozenset()


def _differing(first: Any, other: Any) -> dict[str, str]:
    """By column of the first file, its other type in another file."""
    found = {column.name: column.type for column in _columns_of(other)}
    expected = {column.name: column.type for column in _columns_of(first)}
    return {name: found.get(name, "missing") for name in expected if found.get(name) != expected[name]}
