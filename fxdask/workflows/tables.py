"""Tables: open them, choose their columns by name, and refuse columns that do not hold numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fxdask.errors import InvalidInputError, NotFiniteError
from fxdask.execution.frames import is_dask_frame
from fxdask.store.arrow import arrow_of_frame
from fxdask.store.parquet import ParquetTable, TableColumn, is_parquet, open_parquet
from fxdask.store.paths import is_local

__all__ = [
    "Ids",
    "check_columns",
    "column_types",
    "in_fitted_order",
    "is_frame",
    "named_features",
    "numeric_columns",
    "opened",
    "split_columns",
    "table",
    "with_label_column",
]

MOST_NAMED = 5


def table(path: str | Path, columns: Sequence[str] | None = None) -> ParquetTable:
    """Open Parquet as a table whose chosen columns are samples or labels; only the footers are read.

    Pass it as X or y wherever a path is accepted. A path alone does the same with all columns. Rows
    are numbered through all files of a folder in the order of their names, where numbers count as
    numbers; names that begin with ``_`` or a dot are ignored.

    Parameters
    ----------
    path : path or URL
        A Parquet file, or a folder of Parquet files with the same columns.
    columns : list of str, optional
        The columns to use, in this order; all columns if not given.

    Returns
    -------
    ParquetTable
        Its ``names`` are the chosen columns, its ``n_rows`` the rows of all files.

    Examples
    --------
    >>> import tempfile, fxdask, pyarrow as pa, pyarrow.parquet as pq
    >>> path = tempfile.mkdtemp() + "/train.parquet"
    >>> columns = {"id": ["p", "q", "r", "s"], "size": [0.0, 0.1, 3.0, 3.2], "kind": [0, 0, 1, 1]}
    >>> pq.write_table(pa.table(columns), path)
    >>> X = fxdask.table(path, columns=["size"])
    >>> X.names, X.n_rows
    (('size',), 4)
    >>> fxdask.FisherNetworkClassifier(n_nodes=50).fit(X, "kind").predict(X)
    array([0, 0, 1, 1])
    """
    if not isinstance(path, (str, Path)):
        raise InvalidInputError(f"a table needs a path or a URL, not {type(path).__name__}; pass other data as it is")
    if is_local(str(path)) and not Path(path).expanduser().exists():
        raise InvalidInputError(f"there is no file or folder {path}; check the path")
    if not is_parquet(path):
        raise InvalidInputError(f"{path} is not Parquet, which columns are chosen from; pass a Parquet file or folder")
    return open_parquet(path, columns)


def opened(X: Any) -> Any:
    """The table at a path or URL of Parquet; anything else is returned as it is."""
    return open_parquet(X) if isinstance(X, (str, Path)) and is_parquet(X) else X


def with_label_column(X: Any, y: Any) -> tuple[Any, Any]:
    """X without its column y, and this column as labels, if X is a table and y the name of a column; else X and y."""
    X = opened(X)
    if isinstance(y, str) and (is_frame(X) or is_dask_frame(X)) and y in set(X.columns):
        _checked_names(X.columns, [y])
        return X[[name for name in X.columns if name != y]], X[y]
    if isinstance(y, str) and (is_frame(X) or is_dask_frame(X)) and is_local(y) and not Path(y).expanduser().exists():
        raise InvalidInputError(
            f"y is {y!r}, which is neither a column of X nor a file or folder; check the name or the path"
        )
    if not isinstance(X, ParquetTable) or not isinstance(y, str) or not is_local(y):
        return X, y
    if y not in {column.name for column in X.schema}:
        if Path(y).expanduser().exists():
            return X, y
        raise InvalidInputError(
            f"y is {y!r}, which is neither a file or folder nor a column of {X.url}; check the path or the name"
        )
    if X.chosen is not None and y in X.chosen:
        raise InvalidInputError(f"the column {y!r} of the labels is also among the chosen columns; remove it there")
    return X if X.chosen is not None else X.without([y]), X.choose([y])


def is_frame(X: Any) -> bool:
    """Whether this is a pandas or Polars DataFrame."""
    return hasattr(X, "columns") and (hasattr(X, "iloc") or hasattr(X, "get_columns"))


def column_types(frame: Any) -> list[TableColumn]:
    """The columns of a pandas or Polars DataFrame."""
    if hasattr(frame, "get_columns"):
        return [_polars_column(name, kind) for name, kind in frame.schema.items()]
    return [_pandas_column(frame, place) for place in range(len(frame.columns))]


def _polars_column(name: str, kind: Any) -> TableColumn:
    numeric = kind.is_integer() or kind.is_float() or str(kind) == "Boolean"
    return TableColumn(name, str(kind), "|b1" if str(kind) == "Boolean" else "<f8" if numeric else None)


def _pandas_column(frame: Any, place: int) -> TableColumn:
    name, kind = frame.columns[place], frame.dtypes.iloc[place]
    if kind == object and _holds_numbers(frame.iloc[:, place]):  # noqa: E721 - pandas compares dtypes with types
        return TableColumn(name, "object", "<f8")
    plain = getattr(kind, "numpy_dtype", getattr(kind, "subtype", kind))  # of nullable and of sparse columns
    numeric = getattr(kind, "kind", "O") in "biuf" and isinstance(plain, np.dtype)
    return TableColumn(name, "text" if str(kind) in ("object", "str") else str(kind), plain.str if numeric else None)


def _holds_numbers(column: Any) -> bool:
    """Whether a column of Python objects can be converted to numbers; of a lazy frame's empty column it is unknown.

    Text is no number, even if it has digits alone, as in columns whose type is text.
    """
    if any(isinstance(value, str) for value in column):
        return False
    try:
        np.asarray(column, dtype=np.float64)
    except (ValueError, TypeError, OverflowError):
        return False
    return len(column) > 0


def check_columns(columns: Sequence[TableColumn], name: str = "X") -> None:
    """Refuse columns that do not hold numbers, and columns of one name, by their names."""
    _check_names(columns, name)
    other = [column for column in columns if column.dtype is None]
    if other:
        found = ", ".join(f"{column.name!r} ({column.type})" for column in other[:MOST_NAMED])
        more = f" and {len(other) - MOST_NAMED} more" if len(other) > MOST_NAMED else ""
        raise InvalidInputError(
            f"{name} has columns that do not hold numbers: {found}{more}; "
            "encode them as numbers, or choose other columns"
        )


def _check_names(columns: Sequence[TableColumn], name: str = "X") -> None:
    """Refuse columns of one name."""
    repeated = [column for column, count in Counter(column.name for column in columns).items() if count > 1]
    if repeated:
        raise InvalidInputError(f"{name} has several columns of the name {_quoted(repeated)}; give each its own name")


def numeric_columns(X: Any) -> Any:
    """X without the columns that do not hold numbers, if it is a table; other data is returned as it is."""
    X = opened(X)
    if isinstance(X, ParquetTable):
        types = X.column_types()
    elif is_frame(X) or is_dask_frame(X):
        types = column_types(X._meta if is_dask_frame(X) else X)
    else:
        return X
    _check_names(types)
    numeric = [column.name for column in types if column.dtype is not None]
    if not numeric:
        check_columns(types)
    return X.choose(numeric) if isinstance(X, ParquetTable) else X[numeric]


def in_fitted_order(names: Sequence[str], fitted: Sequence[str]) -> list[str]:
    """The names of the fitted features, after a check that these are the names, in whatever order."""
    present, wanted = set(names), set(fitted)
    missing = [name for name in fitted if name not in present]
    unexpected = [name for name in names if name not in wanted]
    if missing or unexpected:
        raise InvalidInputError(
            "The feature names should match those that were passed during fit: "
            + "; ".join(
                f"{_quoted(found)} {what}"
                for found, what in ((missing, "is missing"), (unexpected, "was not there"))
                if found
            )
        )
    return list(fitted)


def _quoted(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(map(repr, names[:MOST_NAMED])) + more


@dataclass(frozen=True)
class Ids:
    """Columns of X that are copied beside the scores: their names, and where tasks read them."""

    names: tuple[str, ...]
    source: Any
    """A ParquetAddress, or an Arrow table in memory."""


def split_columns(X: Any, columns: Sequence[str] | None, id_columns: Sequence[str] | None) -> tuple[Any, Ids | None]:
    """X with the chosen columns, by default without the ids; and the ids, if there are any."""
    X = opened(X)
    if columns is None and not id_columns:
        return X, None
    if is_dask_frame(X):
        if id_columns:
            raise InvalidInputError(
                "id_columns cannot be copied from a Dask DataFrame; write it as Parquet and pass the path, "
                "or add clf.predict(frame[features]) to the frame"
            )
        return X[_checked_names(X.columns, columns or ())], None
    ids = None
    if isinstance(X, ParquetTable):
        if id_columns:
            ids = Ids(tuple(id_columns), X.choose(id_columns).address())
        return X.without(id_columns or ()) if columns is None else X.choose(columns), ids
    if not is_frame(X):
        raise InvalidInputError(
            f"columns can be chosen from Parquet or from a DataFrame, but X is of type {type(X).__name__}"
        )
    if id_columns:
        ids = Ids(tuple(id_columns), arrow_of_frame(X, _checked_names(X.columns, id_columns)))
    excluded = set(id_columns or ())
    rest = [name for name in X.columns if name not in excluded]
    return X[rest if columns is None else _checked_names(X.columns, columns)], ids


def _checked_names(known: Iterable[str], wanted: Sequence[str]) -> list[str]:
    """The wanted names, if a frame has them all."""
    if isinstance(wanted, str):
        raise InvalidInputError(f"columns must be a list of names, not {wanted!r}")
    columns = list(known)
    unknown = sorted(set(wanted) - set(columns))
    if unknown:
        raise InvalidInputError(f"X has no column {_quoted(unknown)}; its columns are {_quoted(columns)}")
    repeated = sorted({name for name in wanted if columns.count(name) > 1 or list(wanted).count(name) > 1})
    if repeated:
        raise InvalidInputError(f"column {_quoted(repeated)} is there or chosen more than once; name each column once")
    return list(wanted)


@contextmanager
def named_features(names: Sequence[str] | NDArray | None, if_missing: str = "") -> Iterator[None]:
    """Add the name of the column to errors about its values, and one more remedy if a value is missing."""
    try:
        yield
    except NotFiniteError as error:
        named = error if names is None else error.named(list(names))
        raise named.with_remedy(if_missing) if error.is_missing else named from None
