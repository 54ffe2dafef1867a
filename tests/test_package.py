"""The wheel and the source distribution: their files, their metadata, and that they work without the repository."""

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

import numpy as np
import pytest
import zarr

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
STEM = f"{PROJECT['name']}-{PROJECT['version']}"
BESIDE_THE_PACKAGE = {"CHANGELOG.md", "LICENSE", "MANIFEST.in", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg"}
DATA = {"py.typed", "store/FORMAT.md", "experiment/published/mnist.csv", "experiment/published/fashion_mnist.csv"}


def clean_environment():
    """The environment variables without those by which Python would find the repository."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def build(folder, out, *kinds):
    command = [sys.executable, "-m", "build", "--no-isolation", *kinds, "--outdir", out, folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=clean_environment(), cwd=out)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder with a wheel and a source distribution, made from a copy of the project that has been worked in."""
    folder = tmp_path_factory.mktemp("package")
    tree, dist = folder / "tree", folder / "dist"
    dist.mkdir()
    left_out = shutil.ignore_patterns(".venv*", ".git", "__pycache__", "*.egg-info", "build", "dist", ".*_cache")
    shutil.copytree(ROOT, tree, ignore=left_out, symlinks=True)
    for name in ("fxdask/__pycache__/sizes.pyc", "fxdask/store/model.zarr/zarr.json", "fxdask/notes.txt", "out.csv"):
        (tree / name).parent.mkdir(exist_ok=True)
        (tree / name).write_text("not a part of the package")
    build(tree, dist, "--sdist", "--wheel")
    return dist


@pytest.fixture(scope="module")
def wheel(built):
    """The contents of the wheel's files by their names."""
    return contents_of_wheel(built)


def contents_of_wheel(folder):
    (path,) = folder.glob("*.whl")
    assert path.name == f"{STEM}-py3-none-any.whl"
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def sdist_names(built):
    with tarfile.open(built / f"{STEM}.tar.gz") as archive:
        return {member.name.removeprefix(f"{STEM}/") for member in archive if member.isfile()}


def package_files():
    """Names of all files that the package has in the repository."""
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "fxdask").rglob("*.py")}
    return modules | {f"fxdask/{name}" for name in DATA}


def test_the_wheel_has_the_package_with_its_data_and_nothing_else(wheel):
    about = {name for name in wheel if name.startswith(f"{STEM}.dist-info/")}
    assert set(wheel) - about == package_files()
    for name in package_files():
        assert wheel[name] == (ROOT / name).read_bytes(), name
    assert wheel[f"{STEM}.dist-info/licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()


def test_the_source_distribution_has_the_package_and_the_project_files(sdist_names):
    about = {name for name in sdist_names if name.startswith("fxdask.egg-info/")}
    assert sdist_names - about == package_files() | BESIDE_THE_PACKAGE


def test_the_source_distribution_builds_the_same_wheel(built, wheel, tmp_path):
    with tarfile.open(built / f"{STEM}.tar.gz") as archive:
        archive.extractall(tmp_path / "source", filter="data")
    (tmp_path / "dist").mkdir()
    build(tmp_path / "source" / STEM, tmp_path / "dist", "--wheel")
    assert contents_of_wheel(tmp_path / "dist") == wheel


def test_the_metadata_say_what_pyproject_says(wheel):
    metadata = message_from_bytes(wheel[f"{STEM}.dist-info/METADATA"])
    for field, key in (("Name", "name"), ("Version", "version"), ("Summary", "description")):
        assert metadata[field] == PROJECT[key]
    assert metadata["Requires-Python"] == PROJECT["requires-python"]
    assert metadata["License-Expression"] == PROJECT["license"]
    assert metadata.get_all("License-File") == ["LICENSE"]
    assert metadata["Keywords"].split(",") == PROJECT["keywords"]
    assert metadata.get_all("Classifier") == PROJECT["classifiers"]
    assert metadata.get_all("Project-URL") == [f"{name}, {url}" for name, url in PROJECT["urls"].items()]
    assert set(metadata.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload(decode=True) == (ROOT / "README.md").read_bytes()
    assert wheel[f"{STEM}.dist-info/entry_points.txt"] == b"[console_scripts]\nfxdask = fxdask.cli.main:main\n"


def test_the_extra_all_has_every_extra_for_users():
    extras = PROJECT["optional-dependencies"]
    for_developers = {"dev", "deploy-checks", "docs"}
    assert extras["all"] == [f"fxdask[{','.join(sorted(set(extras) - for_developers - {'all'}))}]"]


def run(*command, cwd, status=0):
    done = subprocess.run(command, cwd=cwd, env=clean_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    """The commands of a virtual environment with the packages that fxdask needs, without fxdask and its extras."""
    folder = tmp_path_factory.mktemp("empty")
    run(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    commands = folder / "venv" / "bin"
    install = [commands / "python", "-m", "pip", "install", "--quiet", "-c", ROOT / "scripts" / "constraints.txt"]
    run(*install, "pip", cwd=folder)  # the pip that Python brings may be old and slow
    run(*install, "--no-compile", *PROJECT["dependencies"], cwd=folder)
    return commands


@pytest.mark.full
@pytest.mark.parametrize("name", [f"{STEM}-py3-none-any.whl", f"{STEM}.tar.gz"])
def test_it_works_in_an_empty_environment(built, empty, tmp_path, name):
    # What fxdask needs is there already, so this fails if the package declares anything else.
    install = ["install", "--quiet", "--force-reinstall", "--no-deps", built / name]
    run(empty / "pip", *install, cwd=tmp_path)
    run(empty / "pip", "check", cwd=tmp_path)
    where = run(empty / "python", "-c", "import fxdask; print(fxdask.__file__)", cwd=tmp_path).stdout
    assert Path(where.strip()).is_relative_to(empty.parent)
    assert run(empty / "fxdask", "--version", cwd=tmp_path).stdout.split()[-1] == PROJECT["version"]
    check_reproduce(empty / "fxdask", tmp_path)
    check_rank(empty / "fxdask", tmp_path)


def check_reproduce(fxdask, folder):
    run(fxdask, "reproduce", "digits", "--out", "report", "--seeds", "1", "--nodes", "500", "--quiet", cwd=folder)
    assert "<html" in (folder / "report" / "report.html").read_text()


def check_rank(fxdask, folder):
    """Rank .npy and Zarr arrays; Parquet, which needs an extra, is refused with the remedy."""
    rng = np.random.default_rng(3)
    y = np.arange(200) % 2
    X = rng.standard_normal((200, 4)) + 5 * y[:, None] * np.eye(4)[2]
    np.save(folder / "X.npy", X)
    np.save(folder / "y.npy", y)
    zarr.create_array(folder / "X.zarr", data=X)
    (folder / "X.parquet").write_bytes(b"PAR1")
    for samples in ("X.npy", "X.zarr"):
        run(fxdask, "rank", samples, "--labels", "y.npy", "--out", "ranking.csv", "--quiet", cwd=folder)
        header, *rows = (folder / "ranking.csv").read_text().splitlines()
        best = header.split(",").index("fisher_rank")
        assert [row.split(",")[best] for row in rows][2] == "1"
    for words in (["X.parquet", "--label-column", "y"], ["X.npy", "--labels", "y.npy", "--out", "ranking.parquet"]):
        refused = run(fxdask, "rank", *words, cwd=folder, status=1)
        assert "needs the package pyarrow" in refused.stderr
        assert refused.stderr.endswith("run pip install 'fxdask[parquet]'\n")
        assert len(refused.stderr.splitlines()) == 1
