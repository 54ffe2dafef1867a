"""Rows and columns of Parquet tables, read one row group after another."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from fxdask.errors import InvalidInputError, NotFiniteError
from fxdask.store.arrow import arrow, open_parquet_file, parquet_errors
from fxdask.store.parquet import ParquetAddress, RowGroup, row_groups
from fxdask.store.retry import retried

__all__ = ["column_pieces", "parquet_reader", "read_arrow_rows", "read_column"]


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
        with np.errstate(invalid="ignore"):  # NumPy warns of some bits of NaN when it widens them
            out[:, feature] = values[low : low + len(out)]


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
        with parquet_errors(path), open_parquet_file(source.url, path, source.version) as opened:
            for group in groups:
                if values.shape[1] != group.n_rows:
                    values = np.empty((len(source.columns), group.n_rows), values.dtype)
                columns = _as_columns(_read_group(source, group, opened), source, group, values.dtype)
                with np.errstate(invalid="ignore"):  # as in _fill
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
    with parquet_errors(group.path), open_parquet_file(source.url, group.path, source.version) as opened:
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
    values = column.to_numpy()
    if not np.can_cast(values.dtype, dtype):
        raise InvalidInputError(
            f"column {name!r} holds {values.dtype} but the footer of its file declares numbers that {dtype} can hold; "
            "write the file again"
        )
    return values


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
    with parquet_errors(source.url), open_parquet_file(source.url, source.files[0].path, source.version) as opened:
        return opened.schema_arrow.empty_table().select(names)


@retried
def read_column(source: ParquetAddress) -> NDArray:
    """(row,) all values of an address of one column, of any type, for labels."""
    (name,) = source.columns
    parts = []
    for group in row_groups(source):
        column = _arrow_group(source, group).column(name)
        is_category = arrow().types.is_dictionary(column.type)
        with parquet_errors(group.path):
            parts.append((column.cast(column.type.value_type) if is_category else column).to_numpy())
    return np.concatenate(parts) if parts else np.empty(0, source.dtype or object)
