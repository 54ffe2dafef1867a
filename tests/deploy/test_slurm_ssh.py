"""The scripts for Slurm and SSH, without a cluster."""

import re

import click
import pytest
from dask.utils import parse_bytes
from deploy.deployment import DEPLOY, bash_refusal, memory_agrees, option, script
from distributed.cli import dask_worker


def test_three_lines_of_the_slurm_script_are_to_be_edited():
    lines = (DEPLOY / "slurm" / "fit.py").read_text().splitlines()
    marked = [line for line in lines if "# EDIT" in line]
    assert [re.search(r"# EDIT (\d of 3): ", line)[1] for line in marked] == ["1 of 3", "2 of 3", "3 of 3"]
    assert [line.split(" = ")[0] for line in marked] == ["QUEUE, ACCOUNT", "JOBS", "SAMPLES, LABELS, MODEL"]


def test_the_slurm_job_is_as_the_script_says(tmp_path):
    fit = script("slurm/fit.py")
    fit.MODEL, fit.ACCOUNT = str(tmp_path / "model.zarr"), "physics"
    with fit.slurm_cluster() as cluster:
        job = cluster.job_script()
        keys = list(tmp_path.glob(".dask-jobqueue.worker.key.*"))
        assert [oct(key.stat().st_mode & 0o777) for key in keys] == ["0o600"]
    assert {"-p compute", "-A physics", "--cpus-per-task=4", "-t 240"} <= set(re.findall(r"#SBATCH (.*)", job))
    booked = parse_bytes(re.search(r"--mem=(\d+)M", job)[1] + "MiB")
    (command,) = [line for line in job.splitlines() if "distributed.cli.dask_worker" in line]
    words = command.split()
    assert memory_agrees(words, booked)
    assert parse_bytes(fit.MEMORY) == parse_bytes(option(words, "--memory-limit"))
    assert words[3].startswith("tls://")
    assert "--nanny" in words
    context = dask_worker.main.make_context("worker", words[3:])
    assert context.params["death_timeout"] == "120"
    assert parse_bytes(context.params["lifetime"].removesuffix("s")) < 240 * 60
    assert bash_refusal(job) == ""


@pytest.mark.parametrize(("text", "hosts"), [("a\nb # two\n\n# c\nb\n", ["a", "b", "b"]), ("a\n# b\n", None)])
def test_hosts_of_a_file(text, hosts, tmp_path):
    file = tmp_path / "hosts.txt"
    file.write_text(text)
    cluster = script("ssh/cluster.py")
    if hosts:
        assert cluster.hosts_in(file) == hosts
    else:
        with pytest.raises(click.UsageError, match="has 1 names"):
            cluster.hosts_in(file)


def test_tls_takes_three_files():
    cluster = script("ssh/cluster.py")
    assert cluster.tls_files(None, None, None) == ()
    assert cluster.tls_files("/a", "/b", "/c") == ("/a", "/b", "/c")
    with pytest.raises(click.UsageError, match="TLS needs"):
        cluster.tls_files("/a", None, "/c")
