"""The pods of Kubernetes, and whether they agree with the image."""

import pytest
from dask.utils import parse_bytes
from deploy.deployment import BLAS, IMAGE, changed, healthcheck, memory_agrees, option, pods, resource


def faults_of_pod(pod):
    """What no schema asks for: one image, no root, nothing to gain, limits, one BLAS thread, the shared disk."""
    (container,) = pod["containers"]
    limits, requests = container["resources"]["limits"], container["resources"]["requests"]
    own = container["securityContext"]
    claims = {volume.get("persistentVolumeClaim", {}).get("claimName") for volume in pod["volumes"]}
    variables = {variable["name"]: variable["value"] for variable in container["env"]}
    faults = {
        "image": container["image"] != IMAGE,
        "user": not pod["securityContext"].get("runAsNonRoot") or not pod["securityContext"].get("runAsUser"),
        "rights": own.get("allowPrivilegeEscalation") is not False or own.get("capabilities") != {"drop": ["ALL"]},
        "token": pod.get("automountServiceAccountToken") is not False,
        "limits": limits["memory"] != requests["memory"] or "cpu" not in limits,
        "blas": any(variables.get(name) != "1" for name in BLAS),
        "data": resource("volume.yaml")["metadata"]["name"] not in claims
        or {"name": "data", "mountPath": "/data"} not in container["volumeMounts"],
    }
    return {name for name, faulty in faults.items() if faulty}


@pytest.mark.parametrize("part", ["scheduler", "worker", "job"])
def test_pods_have_no_faults(part):
    assert faults_of_pod(pods()[part]) == set()


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        ("containers/0/image", "fxdask:latest", "image"),
        ("securityContext/runAsUser", 0, "user"),
        ("securityContext/runAsNonRoot", None, "user"),
        ("containers/0/securityContext/capabilities", None, "rights"),
        ("automountServiceAccountToken", True, "token"),
        ("containers/0/resources/limits/memory", "8Gi", "limits"),
        ("containers/0/env", [], "blas"),
        ("volumes", [{"name": "data", "emptyDir": {}}], "data"),
    ],
)
def test_faults_of_pods_are_seen(path, value, fault):
    assert faults_of_pod(changed(pods()["worker"], path, value)) == {fault}


def test_memory_and_threads_of_workers_on_kubernetes():
    (container,) = pods()["worker"]["containers"]
    limits = container["resources"]["limits"]
    assert memory_agrees(container["args"], parse_bytes(limits["memory"] + "B"))
    assert not memory_agrees(container["args"], parse_bytes("8GiB"))
    assert option(container["args"], "--nthreads") == limits["cpu"]


@pytest.mark.parametrize("part", ["scheduler", "worker"])
def test_probes_ask_the_port_of_the_health_check(part):
    (container,) = pods()[part]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for probe in ("readinessProbe", "livenessProbe"):
        asked = container[probe]["httpGet"]
        assert (ports[asked["port"]], asked["path"]) == (8787, "/health")
        assert f"'127.0.0.1', {ports[asked['port']]}," in healthcheck()[-1]
        assert f"'{asked['path']}'" in healthcheck()[-1]
    assert option(container["args"], "--dashboard-address") == ":8787"
