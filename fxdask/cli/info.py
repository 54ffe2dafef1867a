"""``fxdask info``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from fxdask.cli.options import json_option
from fxdask.cli.output import print_result
from fxdask.errors import StoreFormatError
from fxdask.estimators.loading import load
from fxdask.estimators.summary import summary_of
from fxdask.store.group import peek_header
from fxdask.store.lease import working_call
from fxdask.store.model import ModelStore
from fxdask.store.parquet import is_parquet_name
from fxdask.store.paths import store_url
from fxdask.store.ranking import RankingStore
from fxdask.store.score_table import KIND as TABLE
from fxdask.store.score_table import ScoreTable, peek_table
from fxdask.store.scores import ScoreStore
from fxdask.store.transaction import unfinished_beside

__all__ = ["info"]


@click.command()
@click.argument("store", type=click.Path())
@json_option
def info(store: str, as_json: bool) -> None:
    """Show what STORE holds: a model, scores or a ranking, finished or not."""
    url = store_url(store)
    header, unfinished = _header(url), unfinished_beside(url)
    if header is None and not unfinished:
        raise StoreFormatError(f"there is no fxdask store at {url}; check the path")
    facts: dict[str, Any] = {"store": url} | ({} if header is None else _facts(url, header))
    if header is None:
        facts["finished"] = False
    working = working_call(url)
    if unfinished:
        # Scores and replacements are in hidden folders beside the path until they are complete.
        facts["running" if working else "interrupted"] = [_interrupted(folder) for folder in unfinished]
    if working:
        facts["working_on_it"] = working
    elif header is None or not header["finished"]:
        facts["remedy"] = "run the same command again to resume"
    elif unfinished:
        facts["remedy"] = "run the command that was interrupted again to resume it, or delete its folder"
    print_result(facts, as_json)


def _header(url: str) -> Mapping[str, Any] | None:
    return peek_table(url) if is_parquet_name(url.partition(".next-")[0]) else peek_header(url)


def _facts(url: str, header: Mapping[str, Any]) -> dict[str, Any]:
    """What a store at its final path holds."""
    kind = header["kind"]
    facts: dict[str, Any]
    if kind in ("scores", TABLE):
        facts = {name: header.get(name) for name in ("model", "accuracy", "classes")}
        likelihood = "log_likelihood" in header["columns"] if kind == TABLE else bool(header.get("likelihood"))
        facts |= {"samples": header["n_samples"], "likelihood": likelihood}
    elif kind == "ranking":
        facts = {"parameters": header.get("identity")}
    elif header["finished"]:
        facts = summary_of(load(url))
    else:
        facts = {"parameters": header.get("identity")}
    if not header["finished"]:
        parts, done, of = _progress(url, header)
        facts = {parts: {"done": done, "of": of}} | facts
    return {"kind": kind, "finished": header["finished"], "bytes": _size_of(url)} | facts


def _interrupted(folder: str) -> dict[str, Any]:
    header = _header(folder)
    parts, done, of = _progress(folder, header)
    return {"kind": header and header["kind"], "parts": parts, "done": done, "of": of, "folder": folder}


def _progress(url: str, header: Mapping[str, Any] | None) -> tuple[str, int, int]:
    """The parts of an unfinished store, how many of them are done, and how many there are."""
    if header is None:
        return "chunks", 0, 0
    if header["kind"] == TABLE:
        table = ScoreTable.open(url, finished=False)
        return "files", table.n_done(), table.n_files
    if header["kind"] == "scores":
        scores = ScoreStore.open(url, finished=False)
        return "chunks", scores.n_done(), -(-header["n_samples"] // header["rows_per_chunk"])
    if header["kind"] == "ranking":
        ranking = RankingStore.open(url, finished=False)
        return "blocks", ranking.n_done(), ranking.array("blocks_done").size
    marks = ModelStore.open(url, finished=False).blocks_done()
    return "blocks", int(marks.sum()), len(marks)


def _size_of(store: str) -> int | None:
    """Bytes of a store on a local disk; None for a URL."""
    folder = Path(store)
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) if folder.is_dir() else None
