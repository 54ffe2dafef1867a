"""Footers of Parquet files: parsed once in a process, dropped when there are too many, never used for another file."""

from dataclasses import dataclass

import numpy as np
import pyarrow.parquet as pq
from store.test_parquet import X, write, write_folder

from fxdask.store import arrow
from fxdask.store.footers import FooterCache
from fxdask.store.parquet import open_parquet
from fxdask.store.parquet_rows import column_pieces
from fxdask.store.sources import open_rows


@dataclass(frozen=True)
class Footer:
    serialized_size: int


def test_footers_that_were_not_used_for_the_longest_time_are_dropped():
    cache, footers = FooterCache(10), [Footer(4), Footer(5), Footer(3)]
    cache.put("a", footers[0])
    cache.put("b", footers[1])
    assert cache.get("a") is footers[0]
    cache.put("c", footers[2])
    assert [cache.get(key) for key in "abc"] == [footers[0], None, footers[2]]
    cache.put("d", Footer(11))
    assert [cache.get(key) for key in "acd"] == [None, None, None], "a footer longer than the limit is not kept"
    cache.put("a", footers[0])
    assert cache.get("a") is footers[0]


def test_every_footer_is_parsed_once(tmp_path, monkeypatch):
    monkeypatch.setattr(arrow, "_footers", FooterCache(2**20))
    opened, given = pq.ParquetFile, []

    def counted(path, *, metadata=None, **options):
        given.append(metadata is not None)
        return opened(path, metadata=metadata, **options)

    monkeypatch.setattr(pq, "ParquetFile", counted)
    address = open_parquet(write_folder(tmp_path / "x", [20, 20], [5, 7])).address()
    assert given == [False, False]
    found = np.concatenate([piece.copy() for _, piece in column_pieces(address)], axis=1)
    assert np.array_equal(found, X.T)
    assert np.array_equal(open_rows(address)(3, 33), X[3:33])
    assert all(given[2:])
    assert len(given) > 4


def test_a_file_that_was_written_again_is_parsed_again(tmp_path):
    path = write(tmp_path / "x.parquet", group=10)
    before = open_parquet(path).address()
    assert np.array_equal(open_rows(before)(0, 40), X)
    write(path, X + 1, group=10)
    assert np.array_equal(np.concatenate([piece.copy() for _, piece in column_pieces(before)], axis=1), (X + 1).T)
    assert np.array_equal(open_rows(open_parquet(path).address())(0, 40), X + 1)
