"""``fxdask info``."""

from __future__ import annotations

from pathlib import Path

import click

from fxdask.cli.options import json_option
from fxdask.cli.output import print_result
from fxdask.errors import StoreFormatError
from fxdask.estimators.loading import load
from fxdask.estimators.summary import summary_of
from fxdask.store.group import peek_header
from fxdask.store.model import ModelStore
from fxdask.store.paths import store_url

__all__ = ["info"]


@click.command()
@click.argument("store", type=click.Path())
@json_option
def info(store: str, as_json: bool) -> None:
    """Show what STORE holds: a model or scores, finished or not."""
    url = store_url(store)
    header = peek_header(url)
    if header is None:
        raise StoreFormatError(f"there is no fxdask store at {url}; check the path")
    if header["kind"] == "scores":
        facts = {name: header.get(name) for name in ("model", "accuracy", "classes")}
        facts |= {"samples": header["n_samples"], "likelihood": bool(header.get("likelihood"))}
    elif header["finished"]:
        facts = summary_of(load(url))
    else:
        done = ModelStore.open(url, finished=False).blocks_done()
        facts = {"blocks": {"done": int(done.sum()), "of": len(done)}, "parameters": header["identity"]}
    status = {"kind": header["kind"], "finished": header["finished"], "bytes": _size_of(url)}
    print_result({"store": url} | status | facts, as_json)


def _size_of(store: str) -> int | None:
    """Bytes of a store on a local disk; None for a URL."""
    folder = Path(store)
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) if folder.is_dir() else None
