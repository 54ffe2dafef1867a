"""What stands in deploy/, for the tests."""

import copy
import importlib.util
import json
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import yaml
from dask.utils import parse_bytes

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"
DOCKERFILE = DEPLOY / "Dockerfile"
COMPOSE = DEPLOY / "compose" / "compose.yaml"
READMES = sorted(DEPLOY.rglob("README.md"))
KUBERNETES = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
IMAGE = "fxdask:" + tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
BLAS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")
NANNY_ROOM = 2**29


def instructions(dockerfile):
    """(instruction, words) of each, with continued lines put together and comments left out."""
    lines = [line for line in dockerfile.splitlines() if not line.lstrip().startswith("#")]
    whole = "\n".join(lines).replace("\\\n", " ")
    return [(line.split()[0], line.split(maxsplit=1)[1].strip()) for line in whole.splitlines() if line.strip()]


def healthcheck():
    """The words of the image's health check."""
    (options,) = [words for name, words in instructions(DOCKERFILE.read_text()) if name == "HEALTHCHECK"]
    return json.loads(options[options.index("[") :])


def services():
    return yaml.safe_load(COMPOSE.read_text())["services"]


def resource(name):
    return yaml.safe_load((DEPLOY / "kubernetes" / name).read_text())


def pods():
    """Each part's pod on Kubernetes."""
    spec = resource("cluster.yaml")["spec"]
    job = resource("job.yaml")["spec"]["template"]["spec"]
    return {"scheduler": spec["scheduler"]["spec"], "worker": spec["worker"]["spec"], "job": job}


def commands(way):
    """The command of each part, as compose or Kubernetes would start it."""
    if way == "compose":
        return {part: service["command"] for part, service in services().items()}
    return {part: pod["containers"][0]["args"] for part, pod in pods().items()}


def option(words, name):
    """What follows an option in a command."""
    return words[words.index(name) + 1]


def shell_blocks(readme):
    return re.findall(r"```bash\n(.*?)```", readme.read_text(), re.DOTALL)


def documented_commands(program):
    """(README, words) of each call of a program in the READMEs, by itself or as the end of another command.

    A name that is the last word of its line is no call.
    """
    for readme in READMES:
        for line in "".join(shell_blocks(readme)).splitlines():
            words = shlex.split(line, comments=True)
            for start, word in enumerate(words[:-1]):
                if word == program or word.endswith((f"/bin/{program}", f"/ssh/{program}")):
                    yield readme, words[start + 1 :]


def script(name):
    """A Python file of deploy/ as a module of its own: its constants may be changed."""
    spec = importlib.util.spec_from_file_location(Path(name).stem, DEPLOY / name)
    module = importlib.util.module_from_spec(spec)
    handler = signal.getsignal(signal.SIGINT)
    spec.loader.exec_module(module)
    signal.signal(signal.SIGINT, handler)  # which dask-jobqueue takes for itself
    return module


def edited_script(data, folder, queue):
    """The script for Slurm with nothing but its three lines edited, as a user would -> the command that runs it."""
    lines = (DEPLOY / "slurm" / "fit.py").read_text().splitlines()
    edits = {
        "EDIT 1 of 3": f"QUEUE, ACCOUNT = {queue!r}, None",
        "EDIT 2 of 3": "JOBS = 2",
        "EDIT 3 of 3": "SAMPLES, LABELS, MODEL = "
        + ", ".join(repr(str(data / name)) for name in ("X.npy", "y.npy", "model.zarr")),
    }
    for mark, line in edits.items():
        (number,) = [number for number, old in enumerate(lines) if mark in old]
        lines[number] = line
    (folder / "fit.py").write_text("\n".join(lines))
    return [sys.executable, "fit.py"]


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


def memory_agrees(command, container_bytes):
    """Whether a worker's limit leaves its container's room to the nanny, and wastes no more than that."""
    return container_bytes - parse_bytes(option(command, "--memory-limit")) == NANNY_ROOM


def bash_refusal(text):
    return subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False).stderr


def missing_checkers():
    """The packages of the extra deploy-checks that are not installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [name for name in project["optional-dependencies"]["deploy-checks"] if not is_installed(name)]


def is_installed(package):
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False
