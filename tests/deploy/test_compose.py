"""The services of the compose file, and whether they agree with each other."""

import re

import pytest
from dask.utils import parse_bytes
from deploy.deployment import BLAS, IMAGE, changed, healthcheck, memory_agrees, option, services


def faults_of_services(found):
    """What the schema does not know: one image, local ports, health, order, memory, one BLAS thread, shared data."""
    worker = found["worker"]
    ports = [port for service in found.values() for port in service.get("ports", [])]
    scheduler_first = {"scheduler": {"condition": "service_healthy"}}
    faults = {
        "image": {service["image"] for service in found.values()} != {IMAGE},
        "ports": not all(str(port).startswith("127.0.0.1:") for port in ports),
        "health": any(
            found[part]["healthcheck"].get("test") != ["CMD", *healthcheck()] for part in found if part != "job"
        ),
        "order": worker["depends_on"] != scheduler_first
        or found["job"]["depends_on"] != scheduler_first | {"worker": {"condition": "service_healthy"}},
        "memory": not memory_agrees(worker["command"], docker_bytes(worker["deploy"]["resources"]["limits"]["memory"])),
        "threads": option(worker["command"], "--nthreads") != worker["deploy"]["resources"]["limits"]["cpus"],
        "blas": any(service["environment"].get(name) != "1" for service in found.values() for name in BLAS),
        "data": any("data:/data" not in service["volumes"] for service in found.values()),
        "job": found["job"]["profiles"] != ["job"],
        "user": any(str(service.get("user", "10001")).split(":")[0] in ("0", "root") for service in found.values()),
    }
    return {name for name, faulty in faults.items() if faulty}


def docker_bytes(text):
    """Docker's g is 2**30 bytes, where Dask's G is 10**9."""
    return parse_bytes(re.sub(r"g$", "GiB", str(text)))


def test_the_services_agree_with_each_other():
    assert faults_of_services(services()) == set()


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        ("job/image", "fxdask:latest", "image"),
        ("scheduler/ports", ["8786:8786"], "ports"),
        ("scheduler/ports", ["0.0.0.0:8786:8786"], "ports"),
        ("worker/healthcheck", {"disable": True}, "health"),
        ("worker/depends_on", ["scheduler"], "order"),
        ("worker/deploy/resources/limits/memory", "3g", "memory"),
        ("worker/deploy/resources/limits/cpus", "4", "threads"),
        ("worker/environment", {}, "blas"),
        ("worker/volumes", ["/data"], "data"),
        ("job/profiles", [], "job"),
        ("worker/user", "root", "user"),
    ],
)
def test_services_that_disagree_are_seen(path, value, fault):
    assert faults_of_services(changed(services(), path, value)) == {fault}
