"""Start a Dask cluster on machines reached by SSH, and stop it on Ctrl-C.

    python deploy/ssh/cluster.py deploy/ssh/hosts.txt

The first machine of the file runs the scheduler, each of the others a worker. Connections follow the rules of ssh: host
keys must be known, and ~/.ssh/config has users, ports and keys.
"""

import json
import signal
import sys
import threading
from pathlib import Path

import click
import dask
from distributed import Security, SSHCluster

TLS_ROLES = ("scheduler", "worker", "client")


def hosts_in(file: Path) -> list[str]:
    """Read the names in a file, one per line; text after # is a comment."""
    lines = [line.split("#")[0].strip() for line in file.read_text().splitlines()]
    hosts = [line for line in lines if line]
    if len(hosts) < 2:
        raise click.UsageError(f"{file} has {len(hosts)} names, but one is the scheduler's and one more is a worker's")
    return hosts


def use_tls(ca_file: str, cert: str, key: str) -> Security:
    """Require TLS in this process, and in those that it starts, because they get its configuration."""
    dask.config.set({"distributed.comm.tls.ca-file": ca_file, "distributed.comm.require-encryption": True})
    for role in TLS_ROLES:
        dask.config.set({f"distributed.comm.tls.{role}.cert": cert, f"distributed.comm.tls.{role}.key": key})
    return Security()


def tls_files(*files: str | None) -> tuple[str, ...]:
    """All three files or none, as absolute paths, which are the same on all machines."""
    given = tuple(str(Path(file).absolute()) for file in files if file)
    if given and len(given) < len(files):
        raise click.UsageError("TLS needs --tls-ca-file, --tls-cert and --tls-key")
    return given


def until_told_to_stop() -> None:
    """Wait for Ctrl-C, or for the kill command's signal."""
    told = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: told.set())
    told.wait()


@click.command(help=__doc__, context_settings={"show_default": True})
@click.argument("hostfile", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--port", default=8786, help="The scheduler's.")
@click.option("--nthreads", default=2, help="Of each worker.")
@click.option("--memory-limit", default="3.5GiB", help="Of each worker.")
@click.option("--local-directory", default="/tmp", help="On each worker's own disk.")
@click.option("--python", default=sys.executable, help="On all machines.")
@click.option("--ssh-config", type=click.Path(exists=True), help="Instead of ~/.ssh/config.")
@click.option("--scheduler-file", type=click.Path(path_type=Path), help="Write the scheduler's address here.")
@click.option("--tls-ca-file", type=click.Path(exists=True), help="Certificate authority; on all machines.")
@click.option("--tls-cert", type=click.Path(exists=True), help="A certificate; on all machines.")
@click.option("--tls-key", type=click.Path(exists=True), help="Its key; on all machines.")
def main(  # noqa: PLR0913, PLR0917 - one for each option
    hostfile: Path,
    port: int,
    nthreads: int,
    memory_limit: str,
    local_directory: str,
    python: str,
    ssh_config: str | None,
    scheduler_file: Path | None,
    tls_ca_file: str | None,
    tls_cert: str | None,
    tls_key: str | None,
) -> None:
    """Start the cluster, print its address, and stop it at the end."""
    hosts = hosts_in(hostfile)
    files = tls_files(tls_ca_file, tls_cert, tls_key)
    security = use_tls(*files) if files else None
    with SSHCluster(
        hosts,
        connect_options={"config": [ssh_config]} if ssh_config else {},
        worker_options={
            "nthreads": nthreads,
            "memory_limit": memory_limit,
            "local_directory": local_directory,
            "death_timeout": 60,  # a worker without its scheduler ends
        },
        scheduler_options={"host": hosts[0], "port": port, "protocol": "tls://" if files else "tcp://"},
        remote_python=python,
        security=security,
    ) as cluster:
        if scheduler_file:
            scheduler_file.write_text(json.dumps({"address": cluster.scheduler_address}))
        click.echo(f"{len(hosts) - 1} workers of the scheduler {cluster.scheduler_address}; Ctrl-C ends them")
        until_told_to_stop()
    if scheduler_file:
        scheduler_file.unlink(missing_ok=True)
    click.echo("ended")


if __name__ == "__main__":
    main()
