"""The files of deploy/, held against schemas and linters that work offline; and that each of these can refuse."""

import copy
import fnmatch
import json
import re
import subprocess
import sys
import tomllib
from importlib.resources import files
from pathlib import Path

import click
import jsonschema
import kubernetes_validate
import pytest
import yaml
from dask.utils import parse_bytes
from dask_kubernetes.operator.controller.controller import (
    build_scheduler_deployment_spec,
    build_scheduler_service_spec,
    build_worker_deployment_spec,
)
from deployment import (
    COMPOSE,
    DEPLOY,
    DOCKERFILE,
    KUBERNETES,
    READMES,
    ROOT,
    commands,
    documented_commands,
    healthcheck,
    instructions,
    option,
    pods,
    resource,
    script,
    services,
    shell_blocks,
)
from distributed.cli import dask_scheduler, dask_worker

from fxdask.cli.main import cli

TOOLS = Path(sys.executable).parent
IMAGE = "fxdask:" + tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
BLAS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")
NANNY_ROOM = 2**29


def changed(document, path, value):
    """A copy of a document with another value at a path of keys; None takes the key away."""
    broken = copy.deepcopy(document)
    *way, last = path.split("/")
    place = broken
    for key in way:
        place = place[int(key) if key.isdigit() else key]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return broken


# --- The image ---


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


def faults_of_image(dockerfile):
    """What a linter does not ask for: exact tags, a user with a number, nothing but pinned packages, a health check."""
    found = instructions(dockerfile)
    stages = [words.split(" AS ") for name, words in found if name == "FROM"]
    earlier = [{stage[1] for stage in stages[:number] if len(stage) == 2} for number in range(len(stages))]
    bases = [stage[0] for stage, names in zip(stages, earlier, strict=True) if stage[0] not in names]
    users = [words for name, words in found if name == "USER"]
    installs = [words for name, words in found if name == "RUN" and re.search(r"\bpip\b[^&]* install ", words)]
    faults = {
        "base": [base for base in bases if not re.search(r":\d+\.\d+\.\d+-", base)],
        "user": [] if users and re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[-1]) else users or ["none"],
        "pins": [words for words in installs if "--constraint scripts/constraints.txt" not in words],
        "health": [] if any(name == "HEALTHCHECK" for name, _ in found) else ["none"],
        "late": [] if found[-1][0] == "CMD" else [found[-1]],
    }
    return {name for name, faulty in faults.items() if faulty}


def test_the_dockerfile_has_no_faults():
    assert hadolint(DOCKERFILE.read_text()) == set()
    assert faults_of_image(DOCKERFILE.read_text()) == set()


@pytest.mark.parametrize(
    ("old", "new", "rules", "faults"),
    [
        ("python:3.11.13-slim-bookworm", "python:latest", {"DL3007"}, {"base"}),
        ("python:3.11.13-slim-bookworm", "python", {"DL3006"}, {"base"}),
        ("python:3.11.13-slim-bookworm", "python:3.11-slim", set(), {"base"}),
        ("USER 10001:10001", "USER root", {"DL3002"}, {"user"}),
        ("USER 10001:10001\n", "", set(), {"user"}),
        ("--constraint scripts/constraints.txt ", "", set(), {"pins"}),
        ("--no-cache-dir ", "", {"DL3042"}, set()),
        ("HEALTHCHECK", "LABEL healthcheck=none\n#", set(), {"health"}),
        ("WORKDIR /data", "WORKDIR data", {"DL3000"}, set()),
        ("WORKDIR /data", "WORKDIRS /data", {"DL1000"}, set()),
    ],
)
def test_faults_of_a_dockerfile_are_seen(old, new, rules, faults):
    text = DOCKERFILE.read_text()
    assert old in text
    broken = text.replace(old, new)
    assert hadolint(broken) >= rules
    assert rules or faults
    assert faults_of_image(broken) == faults or "DL1000" in rules


def let_through(path, ignored):
    """Whether .dockerignore lets a file to the engine; the last pattern that fits decides."""
    taken = True
    for line in ignored.splitlines():
        pattern = line.removeprefix("!").removeprefix("**/")
        if not line or line.startswith("#"):
            continue
        parents = [str(path), *(str(parent) for parent in path.parents if parent.name)]
        if line.startswith("**/"):
            parents += [part for parent in parents for part in Path(parent).parts]
        if any(fnmatch.fnmatchcase(parent, pattern) for parent in parents):
            taken = line.startswith("!")
    return taken


def copied_files():
    """The files of the checkout that the Dockerfile copies."""
    for name, words in instructions(DOCKERFILE.read_text()):
        if name == "COPY" and not words.startswith("--from"):
            for source in words.split()[:-1]:
                path = ROOT / source
                assert path.exists(), source
                yield from (file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def test_the_extras_of_the_image_exist():
    (default,) = [words for name, words in instructions(DOCKERFILE.read_text()) if name == "ARG"]
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(default.removeprefix("EXTRAS=").split(",")) <= set(known)


def test_dockerignore_lets_through_what_is_copied_and_nothing_else():
    ignored = (ROOT / ".dockerignore").read_text()
    copied = {path.relative_to(ROOT) for path in copied_files()}
    assert Path("fxdask/published/mnist.csv") in copied
    needed = {path for path in copied if "__pycache__" not in path.parts}
    assert [path for path in needed if not let_through(path, ignored)] == []
    others = {Path(name) for name in (".venv/bin/python", ".git/config", "model.zarr/zarr.json", "tests/conftest.py")}
    others |= {path for path in copied if "__pycache__" in path.parts} | {Path("fxdask/__pycache__/cli.pyc")}
    assert [path for path in others if let_through(path, ignored)] == []
    assert not let_through(Path("fxdask/cli.py"), ignored.replace("!fxdask\n", ""))


# --- Compose ---


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


def memory_agrees(command, container_bytes):
    """Whether a worker's limit leaves its container's room to the nanny, and wastes no more than that."""
    return container_bytes - parse_bytes(option(command, "--memory-limit")) == NANNY_ROOM


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


# --- Kubernetes ---

VERSIONS = ("1.30", "1.37")


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


# --- Commands ---


def parsed(words):
    """Let the program's own parser read its words, without running it."""
    program, *rest = words
    command = {
        "fxdask": cli,
        "scheduler": dask_scheduler.main,
        "worker": dask_worker.main,
        "cluster.py": script("ssh/cluster.py").main,
    }[rest.pop(0) if program == "dask" else program]
    if isinstance(command, click.Group):
        name = rest.pop(0)
        assert name in command.commands, name
        command = command.commands[name]
    context = command.make_context("words", rest)
    # Dask's commands take what they do not know for an address, or for words of a preloaded module.
    unknown = [context.params.get("scheduler") or "", *context.params.get("preload_argv", ())]
    if program == "dask" and any(word.startswith("-") for word in unknown):
        raise click.NoSuchOption(str(unknown), ctx=context)
    return context


@pytest.mark.parametrize("way", ["compose", "kubernetes"])
def test_commands_of_containers_are_read_by_their_programs(way):
    found = commands(way)
    assert [words[:2] for words in found.values()] == [["dask", "scheduler"], ["dask", "worker"], ["fxdask", "fit"]]
    for words in found.values():
        parsed(words)
        with pytest.raises(click.UsageError, match="No such option"):
            parsed([*words, "--no-such-option"])


@pytest.mark.parametrize("program", ["fxdask", "dask", "cluster.py"])
def test_commands_of_the_readmes_are_read_by_their_programs(program, tmp_path, monkeypatch):
    (tmp_path / "deploy").symlink_to(DEPLOY)
    monkeypatch.chdir(tmp_path)
    found = list(documented_commands(program))
    assert len({readme for readme, _ in found}) >= {"fxdask": 5, "dask": 1, "cluster.py": 1}[program]
    for _, words in found:
        # The files of certificates need not be there for a look at the words.
        here = [word if not word.endswith(".pem") else str(DOCKERFILE) for word in words]
        parsed([program, *here])
        with pytest.raises(click.UsageError, match="No such option"):
            parsed([program, *here, "--no-such-option"])


def bash_refusal(text):
    return subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False).stderr


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.parent.name)
def test_shell_blocks_are_shell(readme):
    blocks = shell_blocks(readme)
    assert blocks
    for block in blocks:
        assert bash_refusal(block) == ""
        assert "syntax error" in bash_refusal(block + "done")


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.parent.name)
def test_readmes_name_what_exists_tell_of_security_and_how_to_stop(readme):
    text = readme.read_text()
    for target in re.findall(r"\]\(([^)#]+)", text):
        assert (readme.parent / target).exists(), target
    for path in re.findall(r"(?<![\w/])(?:deploy|scripts|tests)/[\w./-]*\w", text):
        assert (ROOT / path).exists(), path
    assert "runs whatever code it is sent" in text
    if readme.parent != DEPLOY:
        assert re.search(r"\b[Ss]top\b", text)
        assert str(readme.relative_to(DEPLOY)) in (DEPLOY / "README.md").read_text()


def test_images_in_the_readmes_are_of_this_version():
    tags = {tag for readme in READMES for tag in re.findall(r"fxdask:[\w.]+\w", readme.read_text())}
    assert tags | set(re.findall(r"--tag (\S+)", DOCKERFILE.read_text())) == {IMAGE}


# --- Slurm and SSH ---


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
