"""``fxdask verify``."""

from __future__ import annotations

import click

from fxdask.cli.options import json_option
from fxdask.cli.output import print_result
from fxdask.errors import StoreFormatError
from fxdask.store.verify import verify_store

__all__ = ["verify"]


@click.command()
@click.argument("store", type=click.Path())
@json_option
def verify(store: str, as_json: bool) -> None:
    """Read every file of the finished STORE, and compare it with the store's manifest."""
    found = verify_store(store)
    facts = {"store": found.store, "files": found.n_files, "damaged": found.damaged}
    facts |= {"not_in_the_manifest": found.unknown}
    if not found.damaged:
        print_result(facts, as_json)
        return
    error = (
        f"{found.store} is damaged: {len(found.damaged)} of {found.n_files} files differ from the manifest; "
        "restore them from a copy, or fit or score again"
    )
    print_result(facts | ({"error": error, "type": StoreFormatError.__name__} if as_json else {}), as_json)
    click.echo(f"error: {error}", err=True)
    click.get_current_context().exit(1)
