"""The files of deploy/, held against schemas and a linter that work offline; and that each of these can refuse."""

import json
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest
import yaml
from deploy.deployment import COMPOSE, DOCKERFILE, KUBERNETES, changed, commands, missing_checkers, option, resource

if missing_checkers():
    pytest.skip(
        "deploy/ is as it was when these tests last passed, so the extra deploy-checks is not installed; "
        "scripts/deploy-checked installs it and runs them",
        allow_module_level=True,
    )

import jsonschema
import kubernetes_validate
from dask_kubernetes.operator.controller.controller import (
    build_scheduler_deployment_spec,
    build_scheduler_service_spec,
    build_worker_deployment_spec,
)

TOOLS = Path(sys.executable).parent
VERSIONS = ("1.30", "1.37")


def hadolint(dockerfile):
    """The rules that a Dockerfile breaks."""
    done = subprocess.run(
        [TOOLS / "hadolint", "--no-fail", "--format", "json", "-"],
        input=dockerfile,
        capture_output=True,
        text=True,
        check=True,
    )
    return {found["code"] for found in json.loads(done.stdout)}


def test_the_dockerfile_breaks_no_rule():
    assert hadolint(DOCKERFILE.read_text()) == set()


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("python:3.11.13-slim-bookworm", "python:latest", "DL3007"),
        ("python:3.11.13-slim-bookworm", "python", "DL3006"),
        ("USER 10001:10001", "USER root", "DL3002"),
        ("--no-cache-dir ", "", "DL3042"),
        ("WORKDIR /data", "WORKDIR data", "DL3000"),
        ("WORKDIR /data", "WORKDIRS /data", "DL1000"),
    ],
)
def test_broken_rules_of_a_dockerfile_are_seen(old, new, rule):
    text = DOCKERFILE.read_text()
    assert old in text
    assert rule in hadolint(text.replace(old, new))


def compose_refusal(document, tmp_path):
    """What the compose specification's schema has against a document; empty if nothing."""
    file = tmp_path / "compose.yaml"
    file.write_text(yaml.safe_dump(document))
    done = subprocess.run(
        [TOOLS / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", file],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout if done.returncode else ""


def test_the_compose_file_fits_its_schema(tmp_path):
    assert compose_refusal(yaml.safe_load(COMPOSE.read_text()), tmp_path) == ""


@pytest.mark.parametrize(
    ("path", "value", "word"),
    [
        ("services/worker/comand", ["dask"], "comand"),
        ("services/worker/deploy/replicas", [2], "replicas"),
        ("services/scheduler/depends_on", {"worker": {"condition": "service_happy"}}, "service_happy"),
        ("services/scheduler/ports", 8786, "ports"),
    ],
)
def test_a_broken_compose_file_is_refused(path, value, word, tmp_path):
    broken = changed(yaml.safe_load(COMPOSE.read_text()), path, value)
    assert word in compose_refusal(broken, tmp_path)


def kubernetes_refusal(document, version=VERSIONS[-1]):
    """What Kubernetes' own schemas have against a document, unknown fields included; empty if nothing."""
    try:
        assert kubernetes_validate.validate(document, version, strict=True) == version
    except kubernetes_validate.ValidationError as error:
        return error.message
    return ""


def closed(schema):
    """A schema of a custom resource that refuses what it does not name, as Kubernetes does when told to be strict."""
    strict = dict(schema)
    if "properties" in schema:
        strict["properties"] = {name: closed(inner) for name, inner in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            strict["additionalProperties"] = False
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            strict[key] = closed(schema[key])
    return strict


@pytest.fixture(scope="module")
def operator_schema():
    """What the Dask operator says of a DaskCluster."""
    charts = files("dask_kubernetes") / "operator" / "deployment" / "helm" / "dask-kubernetes-operator"
    text = (charts / "crds" / "daskcluster.yaml").read_text()
    definition = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))["spec"]
    (version,) = definition["versions"]
    cluster = resource("cluster.yaml")
    assert cluster["kind"] == definition["names"]["kind"]
    assert cluster["apiVersion"] == f"{definition['group']}/{version['name']}"
    schema = closed(version["schema"]["openAPIV3Schema"])
    # Every resource has these, so a definition does not name them.
    schema["properties"] |= {name: {} for name in ("apiVersion", "kind", "metadata")}
    return jsonschema.Draft202012Validator(schema)


def operator_refusal(document, schema):
    return "; ".join(error.message for error in schema.iter_errors(document))


def made_by_operator(cluster):
    """The Deployments and the Service that the operator's own code makes of a DaskCluster."""
    name, labels, spec = cluster["metadata"]["name"], cluster["metadata"]["labels"], cluster["spec"]
    return {
        "scheduler": build_scheduler_deployment_spec(name, spec["scheduler"]["spec"], {}, labels),
        "service": build_scheduler_service_spec(name, spec["scheduler"]["service"], {}, labels),
        "worker": build_worker_deployment_spec(
            f"{name}-default", "fxdask", name, "1", spec["worker"]["spec"], {}, labels
        ),
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_resources_fit_the_schemas_of_kubernetes(version):
    plain = {path.name: resource(path.name) for path in KUBERNETES if path.name != "cluster.yaml"}
    assert set(plain) == {"job.yaml", "network.yaml", "volume.yaml"}
    made = made_by_operator(resource("cluster.yaml"))
    refusals = {name: kubernetes_refusal(document, version) for name, document in (plain | made).items()}
    assert set(refusals.values()) == {""}, refusals


def test_the_cluster_fits_the_operators_definition(operator_schema):
    assert operator_refusal(resource("cluster.yaml"), operator_schema) == ""


@pytest.mark.parametrize(
    ("file", "path", "value", "word"),
    [
        ("job.yaml", "spec/template/spec/containers/0/imagee", "x", "imagee"),
        ("job.yaml", "spec/backoffLimit", "four", "four"),
        ("job.yaml", "spec/template", None, "template"),
        ("volume.yaml", "spec/accessModes", "ReadWriteMany", "ReadWriteMany"),
        ("network.yaml", "spec/ingres", [], "ingres"),
    ],
)
def test_broken_resources_are_refused(file, path, value, word):
    assert word in kubernetes_refusal(changed(resource(file), path, value))


@pytest.mark.parametrize(
    ("path", "value", "word"),
    [
        ("spec/worker/replica", 2, "replica"),
        ("spec/worker/replicas", "two", "two"),
        ("spec/worker/spec/containers/0/readynessProbe", {}, "readynessProbe"),
        ("spec/scheduler/service", None, "service"),
        ("spec/scheduler/spec/containers", None, "containers"),
    ],
)
def test_a_broken_cluster_is_refused(path, value, word, operator_schema):
    assert word in operator_refusal(changed(resource("cluster.yaml"), path, value), operator_schema)


def test_the_job_and_the_policy_find_what_the_operator_makes():
    made = made_by_operator(resource("cluster.yaml"))
    service = made["service"]
    (port,) = [port["port"] for port in service["spec"]["ports"] if port["name"] == "tcp-comm"]
    assert option(commands("kubernetes")["job"], "--scheduler") == f"tcp://{service['metadata']['name']}:{port}"
    labels = {part: made[part]["spec"]["template"]["metadata"]["labels"] for part in ("scheduler", "worker")}
    labels["job"] = resource("job.yaml")["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels["scheduler"].items()
    assert not service["spec"]["selector"].items() <= labels["worker"].items()
    policy = resource("network.yaml")["spec"]
    chosen = policy["podSelector"]["matchLabels"]
    assert all(chosen.items() <= found.items() for found in labels.values())
    assert policy["ingress"][0]["from"][0]["podSelector"]["matchLabels"] == chosen
