"""``fxdask doctor``."""

from __future__ import annotations

import click

from fxdask.cli.options import RunOptions, run_options
from fxdask.cli.output import print_result
from fxdask.errors import ClusterError
from fxdask.execution.diagnosis import Finding, findings_here, findings_on_workers

__all__ = ["doctor"]


@click.command()
@click.argument("paths", type=click.Path(), nargs=-1)
@click.option("--store", "stores", type=click.Path(), multiple=True, help="A store that a job is to write.")
@run_options
def doctor(paths: tuple[str, ...], *, stores: tuple[str, ...], run: RunOptions) -> None:
    """Look at this machine, at the workers of --scheduler, and whether they can reach PATHS and write stores.

    The exit status is 1 if a job could not run so.
    """
    found = findings_here(paths, stores)
    try:
        with run.cluster as client:
            if client is not None:
                found += findings_on_workers(client, paths, stores)
    except ClusterError as error:
        found.append(Finding("scheduler", str(error), is_good=False))
    is_good = all(finding.is_good for finding in found)
    if run.as_json:
        rows = [{"what": line.what, "found": line.found, "good": line.is_good} for line in found]
        print_result({"good": is_good, "findings": rows}, as_json=True)
    else:
        for finding in found:
            click.echo(f"{'ok' if finding.is_good else 'WRONG':<7}{finding.what:<28}{finding.found}")
    if not is_good:
        click.get_current_context().exit(1)
