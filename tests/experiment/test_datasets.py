"""The experiment's data: valid and damaged IDX files, OpenML and scikit-learn."""

import gzip
import tracemalloc
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from command_line import run_here
from idx_files import idx_bytes, write_idx_folder

from fxdask.errors import DataUnavailableError, InvalidInputError
from fxdask.experiment import datasets
from fxdask.experiment.datasets import read_idx, read_images


def images(n, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, 3, 4)).astype(np.uint8)


@pytest.fixture
def folder(tmp_path):
    labels = np.arange(40) % 10
    return write_idx_folder(tmp_path / "idx", images(40), labels, images(20, 1), labels[:20])


@pytest.mark.parametrize("array", [images(5), np.arange(7, dtype=np.uint8)])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_idx_files_are_read_as_written(tmp_path, array, ending):
    file = tmp_path / f"array{ending}"
    file.write_bytes(gzip.compress(idx_bytes(array)) if ending else idx_bytes(array))
    assert np.array_equal(read_idx(file), array)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an IDX file of bytes in 1 to 3 dimensions: it starts with nothing"),
        (
            b"\x1f\x8b\x08\x00 compressed but not named .gz",
            "not an IDX file of bytes in 1 to 3 dimensions: it starts with 1f 8b 08 00",
        ),
        (b"\0\0\x0d\x01" + bytes(8), "not an IDX file of bytes"),
        (idx_bytes(images(5))[:-1], "truncated: it has 75 bytes, but its header gives 5 x 3 x 4, 76 bytes"),
        (idx_bytes(images(5))[:9], "truncated: it ends in its header, after 9 of 16 bytes"),
        (idx_bytes(images(5)) + b"\0", "too long"),
        (b"\0\0\x08\x03" + b"\xff" * 12, "truncated: it has 16 bytes"),
        (b"\0\0\x08\x41" + bytes(4 * 65), "not an IDX file of bytes in 1 to 3 dimensions"),
        (b"\0\0\x08\x03" + bytes(4) + b"\xff" * 8, "empty: its header gives 0 x 4294967295 x 4294967295"),
    ],
)
def test_the_error_names_a_damaged_file(tmp_path, content, message):
    file = tmp_path / "train-images-idx3-ubyte"
    file.write_bytes(content)
    with pytest.raises(InvalidInputError, match=f"train-images-idx3-ubyte is .*{message}"):
        read_idx(file)


@pytest.mark.parametrize(
    ("damage", "message"),
    [(lambda whole: whole[:-9], "is truncated"), (lambda whole: whole[:20] + b"??" + whole[22:], "is (damaged|trunc)")],
)
def test_the_error_names_a_damaged_compressed_file(tmp_path, damage, message):
    file = tmp_path / "train-images-idx3-ubyte.gz"
    file.write_bytes(damage(gzip.compress(idx_bytes(images(50)))))
    with pytest.raises(InvalidInputError, match=f"train-images-idx3-ubyte.gz {message}"):
        read_idx(file)


@pytest.mark.parametrize("separator", ["-", "."])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_all_usual_file_names_are_found(folder, tmp_path, separator, ending):
    other = tmp_path / "other"
    other.mkdir()
    for file in folder.iterdir():
        content = file.read_bytes()
        name = file.name.replace("-idx", f"{separator}idx") + ending
        (other / name).write_bytes(gzip.compress(content) if ending else content)
    found = read_images("mnist", other)
    assert np.array_equal(found.train_images, images(40).reshape(40, 12))
    assert found.image_shape == (3, 4)
    assert np.array_equal(found.test_labels, np.arange(20) % 10)
    assert found.digest() == read_images("mnist", folder).digest()


def test_a_known_split_is_recognised_by_its_digest(folder, monkeypatch):
    found = read_images("mnist", folder)
    assert "a copy that fxdask does not know" in found.split
    facts = datasets.DATASETS["mnist"]
    monkeypatch.setitem(datasets.DATASETS, "mnist", replace(facts, known_splits={found.digest(): "known"}))
    assert read_images("mnist", folder).split == "known"
    assert read_images("digits").split == "every fourth image is a test image"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "t10k-labels-idx1-ubyte").unlink(), "has no t10k-labels-idx1-ubyte, plain or .gz"),
        (
            lambda f: (f / "train-labels-idx1-ubyte").write_bytes(idx_bytes(np.arange(39, dtype=np.uint8) % 10)),
            "train-labels-idx1-ubyte has 39 labels but there are 40 images",
        ),
        (
            lambda f: (f / "t10k-labels-idx1-ubyte").write_bytes(idx_bytes(np.arange(20, dtype=np.uint8))),
            "t10k-labels-idx1-ubyte has the label 19 but labels run from 0 to 9",
        ),
        (
            lambda f: (f / "t10k-images-idx3-ubyte").write_bytes(idx_bytes(np.zeros((20, 3, 3), np.uint8))),
            "training images have 3 x 4 pixels but test images 3 x 3",
        ),
        (
            lambda f: (f / "train-images-idx3-ubyte").write_bytes(idx_bytes(np.zeros(40, np.uint8))),
            "train-images-idx3-ubyte has 1 dimensions but needs 3",
        ),
    ],
)
def test_files_that_contradict_each_other_are_refused(folder, damage, message):
    damage(folder)
    with pytest.raises(InvalidInputError, match=message):
        read_images("mnist", folder)


def test_unknown_names_and_folders_are_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="'cifar' is not known; choose one of mnist, fashion_mnist, digits"):
        read_images("cifar")
    with pytest.raises(InvalidInputError, match="is not a folder; pass the folder of train-images"):
        read_images("mnist", tmp_path / "nowhere")
    with pytest.raises(InvalidInputError, match="digits comes with scikit-learn .*; do not pass data"):
        read_images("digits", tmp_path)


def test_openml_has_the_training_images_first():
    data, target = np.arange(70_000)[:, None] % 251 * np.ones(4), np.array(["7"] * 60_000 + ["2"] * 10_000)

    def fetch(name, **_):
        assert name == "mnist_784"
        return SimpleNamespace(data=data, target=target)

    found = datasets._from_openml("mnist", fetch)
    assert np.array_equal(found.train_images, data[:60_000])
    assert np.array_equal(found.test_labels, np.full(10_000, 2))
    assert found.image_shape == (2, 2)


def test_without_a_network_the_error_names_the_remedy(tmp_path, monkeypatch):
    for name in ("https_proxy", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # a closed port
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path / "cache"))
    run = run_here(tmp_path, "reproduce", "mnist")
    assert run.returncode == 1
    assert "MNIST is not in scikit-learn's cache and cannot be downloaded from openml.org" in run.stderr
    assert "pass a folder with train-images-idx3-ubyte" in run.stderr
    assert run.stderr.strip().splitlines()[-1].startswith("error: MNIST is not in")
    assert "Traceback" not in run.stderr


def test_a_failed_download_raises_data_unavailable():
    def fetch(*_, **__):
        raise ConnectionError("no route")

    with pytest.raises(DataUnavailableError, match=r"\(no route\)"):
        datasets._from_openml("fashion_mnist", fetch)


def test_a_small_compressed_file_is_not_unpacked_beyond_its_header(tmp_path):
    content = idx_bytes(np.arange(6, dtype=np.uint8).reshape(1, 2, 3))
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(content + bytes(2**27)))
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInputError, match="too long: it has at least 23 bytes"):
            read_idx(path)
        assert tracemalloc.get_traced_memory()[1] < 2**25
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("content", [b"", b"\0\0", b"\0\0\x08\x03", b"\0\0\x08\x01\0\0", b"\0\0\x08\xff" + bytes(99)])
def test_compressed_files_with_a_part_of_a_header_are_refused(tmp_path, content):
    (tmp_path / "images.gz").write_bytes(gzip.compress(content))
    with pytest.raises(InvalidInputError, match="not an IDX file|truncated"):
        read_idx(tmp_path / "images.gz")
