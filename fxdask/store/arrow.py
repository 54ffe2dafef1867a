"""The package pyarrow: imported on first use, its files and tables, and its errors in one sentence."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fxdask.errors import InvalidInputError
from fxdask.store.footers import FooterCache
from fxdask.store.paths import files_at, is_local

__all__ = ["arrow", "arrow_of_frame", "forget_footers", "listed", "open_parquet_file", "parquet_errors"]

MOST_FOOTER_BYTES = 2**24


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
def parquet_errors(file: str) -> Iterator[None]:
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


_footers = FooterCache(MOST_FOOTER_BYTES)


def open_parquet_file(url: str, path: str, version: str) -> Any:
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


def forget_footers() -> None:
    """Free the memory of footers that were kept for later reads."""
    _footers.clear()


def arrow_of_frame(frame: Any, columns: Sequence[str]) -> Any:
    """Columns of a pandas or Polars DataFrame as an Arrow table; refused if Arrow has no type for one."""
    chosen, pa = frame[list(columns)], arrow()
    objects = [name for name, kind in getattr(chosen, "schema", {}).items() if str(kind) == "Object"]
    if objects:  # Polars would copy the addresses of the objects
        raise InvalidInputError(f"column {listed(objects)} holds Python objects; convert it to text or to numbers")
    try:
        return chosen.to_arrow() if hasattr(chosen, "to_arrow") else pa.Table.from_pandas(chosen, preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError) as error:
        reason = " ".join(str(error.args[0] if error.args else error).split())
        raise InvalidInputError(
            f"column {listed(list(columns))} has values that no type of Parquet holds ({reason}); "
            "convert it to text or to numbers"
        ) from error


def listed(names: Sequence[str], most: int = 5) -> str:
    """Quoted names, the first few of many."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + more
