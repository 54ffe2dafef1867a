"""Parquet files as a source of samples: rows of chosen columns, one row group after another.

Rows are numbered through all files of a folder, in the order of the file names. A number in a name
counts as a number, so that ``part.2`` comes before ``part.10``.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from threading import Lock
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from fxdask.errors import InvalidInputError, NotFiniteError
from fxdask.store.footers import FooterCache
from fxdask.store.paths import file_version, files_at, is_local
from fxdask.store.retry import reading, retried

__all__ = [
    "ParquetAddress",
    "ParquetTable",
    "TableColumn",
    "arrow",
    "arrow_of_frame",
    "column_pieces",
    "is_parquet",
    "is_parquet_name",
    "open_parquet",
    "parquet_reader",
    "read_arrow_rows",
    "read_column",
    "row_groups",
]

SUFFIXES = (".parquet", ".parq", ".pq")
MAGIC = b"PAR1"
FOOTERS_AT_A_TIME = 8
MOST_FOOTER_BYTES = 2**24
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
            raise InvalidInputError(
                f"{self.url} has no column {_listed(unknown)}; its columns are {_listed(sorted(known), 10)}"
            )
        repeated = _repeated(column.name for column in self.schema) & set(chosen)
        if repeated:
            raise InvalidInputError(
                f"{self.url} has several columns named {_listed(sorted(repeated))}; write it with a name for each"
            )
        repeated = _repeated(chosen)
        if repeated:
            raise InvalidInputError(
                f"column {_listed(sorted(repeated))} is chosen more than once; choose each column once"
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


def _repeated(names: Iterable[str]) -> set[str]:
    return {name for name, count in Counter(names).items() if count > 1}


def _listed(names: Sequence[str], most: int = 5) -> str:
    """Quoted names, the first few of many."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + more


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


def arrow() -> Any:
    """The package pyarrow, imported where it is needed, because it is optional and takes long to import."""
    try:
        import pyarrow.parquet  # noqa: PLC0415
    except ImportError as error:
        raise InvalidInputError(
            f"Parquet needs the package pyarrow ({error}); run pip install 'fxdask[parquet]'"
        ) from error
    return pyarrow


@contextmanager
def _parquet_errors(file: str) -> Iterator[None]:
    """Report what pyarrow raises in one sentence that names the file."""
    try:
        yield
    except FileNotFoundError:
        raise InvalidInputError(f"there is no file {file}; check the path") from None
    except InvalidInputError:
        raise
    except (ValueError, NotImplementedError, RecursionError, OSError, arrow().ArrowException) as error:
        # pyarrow reports damaged content by these types, and an OSError then has no number.
        if isinstance(error, OSError) and (error.errno is not None or not is_local(file)):
            raise
        reason = " ".join(str(error).split())
        raise InvalidInputError(f"{file} is not a readable Parquet file ({reason}); write the file again") from error


def _open_file(url: str, path: str, version: str) -> Any:
    """One file, opened by pyarrow; remote ones are read in few large requests.

    The footer of the same version of the file is parsed once in a process.
    """
    pq = arrow().parquet
    if is_local(url):
        found = os.stat(path)
        key: tuple[Any, ...] = (path, version, found.st_size, found.st_mtime_ns, found.st_ino)
        footer = _footers.get(key)
        opened = pq.ParquetFile(path, metadata=footer)
    else:
        key, (files, _) = (path, version), files_at(url)
        footer = _footers.get(key)
        opened = pq.ParquetFile(files.open(path, "rb", cache_type="none"), metadata=footer, pre_buffer=True)
    if footer is None:
        _footers.put(key, opened.metadata)
    return opened


@retried
def open_parquet(path: str | Path, columns: Sequence[str] | None = None) -> ParquetTable:
    """A path or URL of a Parquet file or of a folder of such files -> its table; only the footers are read."""
    text = str(path)
    url = str(Path(text).expanduser().absolute()) if is_local(text) else text.rstrip("/")
    with _parquet_errors(url), reading(url, "the list of files"):
        found = _parquet_files(url)
    names = list(found)
    if not names:
        raise InvalidInputError(f"there is no Parquet file at {text}; check the path")
    version = _version(found)
    with ThreadPoolExecutor(FOOTERS_AT_A_TIME) as pool:
        footers = list(pool.map(lambda name: _read_footer(url, name, version), names))
    with _parquet_errors(url):
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
    with _parquet_errors(name), _open_file(url, name, version) as opened:
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


# Reading


class _SharedGroup:
    """A decoded row group, of which several ranges are read."""

    def __init__(self, n_rows: int) -> None:
        self.lock = Lock()
        self.columns: list[NDArray] | None = None
        self.n_left = n_rows


class _OpenTable:
    """An address in this process: where its row groups begin, and the decoded ones.

    A range of rows is often much shorter than a row group, which can only be decoded as a whole. So a
    decoded group is kept until all its rows were read. There are never more of them than there are
    calls that read at the same time.
    """

    def __init__(self, source: ParquetAddress) -> None:
        self._lock = Lock()
        self._decoded: OrderedDict[RowGroup, _SharedGroup] = OrderedDict()
        self._n_readers = 0
        self._groups = row_groups(source)
        self._starts = np.array([group.start for group in self._groups], np.int64)

    def parts(self, start: int, stop: int) -> Iterator[tuple[RowGroup, int, int]]:
        """The row groups of these rows, each with its first and last wanted row, counted within the group."""
        first = max(0, int(np.searchsorted(self._starts, start, side="right")) - 1)
        for index in range(first, int(np.searchsorted(self._starts, stop))):
            group = self._groups[index]
            yield group, max(0, start - group.start), min(group.n_rows, stop - group.start)

    def read(self, source: ParquetAddress, group: RowGroup, low: int, out: NDArray) -> None:
        """Write the rows of a group from ``low`` on into ``out``."""
        if len(out) == group.n_rows:
            _fill(out, _decoded_columns(source, group, out.dtype), low)
            return
        with self._lock:
            self._n_readers += 1
            shared = self._decoded.setdefault(group, _SharedGroup(group.n_rows))
            self._decoded.move_to_end(group)
        try:
            with shared.lock:
                if shared.columns is None:
                    shared.columns = _decoded_columns(source, group, out.dtype)
            _fill(out, shared.columns, low)
        finally:
            with self._lock:
                self._n_readers -= 1
                shared.n_left -= len(out)
                if shared.n_left <= 0 or shared.columns is None:
                    self._decoded.pop(group, None)
                while len(self._decoded) > max(1, self._n_readers):
                    self._decoded.popitem(last=False)


def _fill(out: NDArray, columns: Sequence[NDArray], low: int) -> None:
    """(column,) values of a whole group -> its rows from ``low`` on, as many as ``out`` has."""
    for feature, values in enumerate(columns):
        out[:, feature] = values[low : low + len(out)]


_footers = FooterCache(MOST_FOOTER_BYTES)


def forget_footers() -> None:
    """Free the memory of footers that were kept for later reads."""
    _footers.clear()


_tables: WeakKeyDictionary[ParquetAddress, _OpenTable] = WeakKeyDictionary()
_tables_lock = Lock()


def _open_table(source: ParquetAddress) -> _OpenTable:
    """The table of an address in this process; it is deleted with the address."""
    with _tables_lock:
        if source not in _tables:
            _tables[source] = _OpenTable(source)
        return _tables[source]


def parquet_reader(
    source: ParquetAddress, allocate: Callable[[tuple[int, ...], np.dtype], NDArray]
) -> Callable[[int, int], NDArray]:
    """A function of (start, stop) that returns those rows, read into an array from ``allocate``."""
    if source.dtype is None:
        raise InvalidInputError(f"{source.url} has columns that do not hold numbers; choose other columns")
    dtype, table = np.dtype(source.dtype), _open_table(source)

    @retried
    def read(start: int, stop: int) -> NDArray:
        stop = min(stop, source.n_rows)
        rows = allocate((max(0, stop - start), len(source.columns)), dtype)
        for group, low, high in table.parts(start, stop):
            first = group.start + low - start
            table.read(source, group, low, rows[first : first + high - low])
        return rows

    return read


def column_pieces(source: ParquetAddress) -> Iterator[tuple[int, NDArray]]:
    """(column, row) values of every row group with its first row, which the next ones may overwrite.

    Only the chosen columns are read and decoded.
    """
    values = np.empty((len(source.columns), 0), np.dtype(source.dtype))
    for path, groups in groupby(row_groups(source), key=lambda group: group.path):
        # A file of many columns and row groups has a long footer, so it is opened once for all of them.
        with _parquet_errors(path), _open_file(source.url, path, source.version) as opened:
            for group in groups:
                if values.shape[1] != group.n_rows:
                    values = np.empty((len(source.columns), group.n_rows), values.dtype)
                columns = _as_columns(_read_group(source, group, opened), source, group, values.dtype)
                for feature, column in enumerate(columns):
                    values[feature] = column
                yield group.start, values


def _decoded_columns(source: ParquetAddress, group: RowGroup, dtype: np.dtype) -> list[NDArray]:
    """(column,) values of one row group; without nulls they are Arrow's own memory."""
    return _as_columns(_arrow_group(source, group), source, group, dtype)


def _as_columns(table: Any, source: ParquetAddress, group: RowGroup, dtype: np.dtype) -> list[NDArray]:
    return [
        _as_numpy(table.column(name), dtype, group.start, feature, name) for feature, name in enumerate(source.columns)
    ]


def _arrow_group(source: ParquetAddress, group: RowGroup) -> Any:
    """One row group as an Arrow table of the chosen columns."""
    with _parquet_errors(group.path), _open_file(source.url, group.path, source.version) as opened:
        return _read_group(source, group, opened)


def _read_group(source: ParquetAddress, group: RowGroup, opened: Any) -> Any:
    """One row group of an open file as an Arrow table of the chosen columns."""
    n_rows = None
    if group.index < opened.num_row_groups:
        table = opened.read_row_group(group.index, columns=list(source.columns), use_threads=False)
        n_rows = table.num_rows
    if n_rows != group.n_rows or not set(source.columns) <= set(table.column_names):
        raise InvalidInputError(
            f"{group.path} has changed since its footer was read: row group {group.index} had {group.n_rows} rows "
            f"of {len(source.columns)} columns; start again, and do not change X meanwhile"
        )
    return table


def _as_numpy(column: Any, dtype: np.dtype, start: int, feature: int, name: str) -> NDArray:
    """A column of numbers as NumPy array; nulls become NaN, or are refused if the type has no NaN."""
    if column.null_count:
        if dtype.kind != "f":
            missing = np.flatnonzero(column.is_null().to_numpy())
            raise NotFiniteError("a missing value", start + int(missing[0]), feature, name)
        column = column.cast(arrow().from_numpy_dtype(dtype), safe=False)
    return column.to_numpy()


def arrow_of_frame(frame: Any, columns: Sequence[str]) -> Any:
    """Columns of a pandas or Polars DataFrame as an Arrow table; refused if Arrow has no type for one."""
    chosen, pa = frame[list(columns)], arrow()
    objects = [name for name, kind in getattr(chosen, "schema", {}).items() if str(kind) == "Object"]
    if objects:  # Polars would copy the addresses of the objects
        raise InvalidInputError(f"column {_listed(objects)} holds Python objects; convert it to text or to numbers")
    try:
        return chosen.to_arrow() if hasattr(chosen, "to_arrow") else pa.Table.from_pandas(chosen, preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError) as error:
        reason = " ".join(str(error.args[0] if error.args else error).split())
        raise InvalidInputError(
            f"column {_listed(list(columns))} has values that no type of Parquet holds ({reason}); "
            "convert it to text or to numbers"
        ) from error


@retried
def read_arrow_rows(source: ParquetAddress | Any, start: int, stop: int) -> Any:
    """A range of rows of an address or of an Arrow table as Arrow table, for columns that are copied unchanged."""
    if not isinstance(source, ParquetAddress):
        return source.slice(start, stop - start)
    stop, names = min(stop, source.n_rows), list(source.columns)
    wanted = _open_table(source).parts(start, stop)
    parts = [_arrow_group(source, group).slice(low, high - low).select(names) for group, low, high in wanted]
    if parts:
        return arrow().concat_tables(parts)
    with _parquet_errors(source.url), _open_file(source.url, source.files[0].path, source.version) as opened:
        return opened.schema_arrow.empty_table().select(names)


@retried
def read_column(source: ParquetAddress) -> NDArray:
    """(row,) all values of an address of one column, of any type, for labels."""
    (name,) = source.columns
    parts = []
    for group in row_groups(source):
        column = _arrow_group(source, group).column(name)
        is_category = arrow().types.is_dictionary(column.type)
        with _parquet_errors(group.path):
            parts.append((column.cast(column.type.value_type) if is_category else column).to_numpy())
    return np.concatenate(parts) if parts else np.empty(0, source.dtype or object)
