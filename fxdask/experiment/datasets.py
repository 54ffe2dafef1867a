"""Read the experiment's data sets: IDX files in a folder, OpenML's copies, or scikit-learn's digits."""

from __future__ import annotations

import gzip
import hashlib
import math
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import fetch_openml, load_digits

from fxdask.errors import DataUnavailableError, InvalidInputError

__all__ = ["DATASETS", "N_CLASSES", "PUBLISHED_SPLIT", "UNKNOWN_SPLIT", "ImageSet", "read_idx", "read_images"]

N_CLASSES = 10
IDX_FILES = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}
UNSIGNED_BYTES = 0x08
BYTES_PER_READ = 2**20
PUBLISHED_SPLIT = "the published training and test sets"
OTHER_SPLIT = (
    "not the published training and test sets, but the same 70,000 images in another split, with 6,000 training and "
    "1,000 test images of each class"
)
UNKNOWN_SPLIT = "from a copy that fxdask does not know, so its split may differ from the published one"
EVERY_FOURTH = "every fourth image is a test image"
OPENML_TRAINING_IMAGES = 60_000


@dataclass(frozen=True)
class DatasetFacts:
    """Facts about a data set that do not depend on a copy of it."""

    title: str
    class_names: tuple[str, ...]
    openml_name: str | None = None
    known_splits: Mapping[str, str] = field(default_factory=dict)
    """Descriptions of known splits into training and test images, by the digest of all images and labels."""


DATASETS = {
    "mnist": DatasetFacts(
        "MNIST",
        tuple(map(str, range(N_CLASSES))),
        "mnist_784",
        {"fbe9e40f4a72f9b12d720747b8c6e4a23d3be27e1defa5259d89b40a4db1e1d2": PUBLISHED_SPLIT},
    ),
    "fashion_mnist": DatasetFacts(
        "Fashion-MNIST",
        ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
        "Fashion-MNIST",
        {"cf89ef7156c6e7af6bfe49457417b8d83f750605d8ecc15165a5f09f5524379b": OTHER_SPLIT},
    ),
    "digits": DatasetFacts("scikit-learn's 8 x 8 digits", tuple(map(str, range(N_CLASSES)))),
}


@dataclass(frozen=True, kw_only=True)
class ImageSet:
    """Training and test images of ten classes, one image per row."""

    name: str
    train_images: NDArray[np.uint8]
    train_labels: NDArray[np.uint8]
    test_images: NDArray[np.uint8]
    test_labels: NDArray[np.uint8]
    image_shape: tuple[int, int]
    origin: str

    @property
    def facts(self) -> DatasetFacts:
        """Facts about the data set."""
        return DATASETS[self.name]

    @property
    def split(self) -> str:
        """Text that says whether training and test images are the published ones."""
        if self.facts.openml_name is None:
            return EVERY_FOURTH
        return self.facts.known_splits.get(self.digest(), UNKNOWN_SPLIT)

    def digest(self) -> str:
        """Digest of every image and label."""
        found = hashlib.sha256(repr(self.image_shape).encode())
        for array in (self.train_images, self.train_labels, self.test_images, self.test_labels):
            found.update(np.ascontiguousarray(array).data)
        return found.hexdigest()


def read_images(name: str, folder: str | Path | None = None) -> ImageSet:
    """Read a data set from a folder of IDX files, or without a folder through scikit-learn and its cache."""
    if not isinstance(name, str) or name not in DATASETS:
        raise InvalidInputError(f"dataset {name!r} is not known; choose one of {', '.join(DATASETS)}")
    if folder is not None and DATASETS[name].openml_name is None:
        raise InvalidInputError(f"{name} comes with scikit-learn and is not read from a folder; do not pass data")
    if folder is not None:
        return _from_folder(name, Path(folder))
    return _from_openml(name) if DATASETS[name].openml_name else _from_scikit_learn(name)


def _check_labels(images: NDArray[np.uint8], labels: NDArray[np.uint8], file: Path) -> None:
    if len(images) != len(labels):
        raise InvalidInputError(f"{file} has {len(labels)} labels but there are {len(images)} images; replace the file")
    if len(labels) and labels.max() >= N_CLASSES:
        raise InvalidInputError(
            f"{file} has the label {labels.max()} but labels run from 0 to {N_CLASSES - 1}; replace it"
        )


def _from_folder(name: str, folder: Path) -> ImageSet:
    if not folder.is_dir():
        raise InvalidInputError(f"{folder} is not a folder; pass the folder of {_expected_names()} as data")
    found = {part: read_idx(_idx_file(folder, file)) for part, file in IDX_FILES.items()}
    for part, array in found.items():
        n_dimensions = 3 if part.endswith("images") else 1
        if array.ndim != n_dimensions:
            raise InvalidInputError(
                f"{_idx_file(folder, IDX_FILES[part])} has {array.ndim} dimensions but needs {n_dimensions}; replace it"
            )
    for part in ("train", "test"):
        _check_labels(found[f"{part}_images"], found[f"{part}_labels"], _idx_file(folder, IDX_FILES[f"{part}_labels"]))
    train, test = found["train_images"], found["test_images"]
    if train.shape[1:] != test.shape[1:]:
        sizes = [" x ".join(map(str, part.shape[1:])) for part in (train, test)]
        raise InvalidInputError(
            f"{folder}: training images have {sizes[0]} pixels but test images {sizes[1]}; replace one"
        )
    return ImageSet(
        name=name,
        train_images=train.reshape(len(train), -1),
        train_labels=found["train_labels"],
        test_images=test.reshape(len(test), -1),
        test_labels=found["test_labels"],
        image_shape=(train.shape[1], train.shape[2]),
        origin=f"IDX files in {folder}",
    )


def _expected_names() -> str:
    return ", ".join(IDX_FILES.values()) + " (plain or .gz)"


def _idx_file(folder: Path, name: str) -> Path:
    """The plain or compressed file of this name, with a dash or a dot before "idx"."""
    names = [name, name.replace("-idx", ".idx")]
    for candidate in [folder / f"{each}{ending}" for ending in ("", ".gz") for each in names]:
        if candidate.is_file():
            return candidate
    raise InvalidInputError(f"{folder} has no {name}, plain or .gz; pass the folder of {_expected_names()} as data")


def read_idx(path: str | Path) -> NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes, plain or compressed, as an array.

    The first four bytes are 0, 0, the type and the number of dimensions. Each dimension's length
    follows in four bytes, big-endian, and then the values until the end of the file.
    """
    path = Path(path)
    content = _content(path)
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != UNSIGNED_BYTES or not 1 <= content[3] <= 3:
        start = content[:4].hex(" ") or "nothing"
        raise InvalidInputError(
            f"{path} is not an IDX file of bytes in 1 to 3 dimensions: it starts with {start}; replace it"
        )
    header_bytes = 4 + 4 * content[3]
    if len(content) < header_bytes:
        raise InvalidInputError(
            f"{path} is truncated: it ends in its header, after {len(content)} of {header_bytes} bytes; replace it"
        )
    shape = struct.unpack(f">{content[3]}I", content[4:header_bytes])
    expected = header_bytes + math.prod(shape)
    if len(content) != expected:
        more = "at least " if len(content) > expected else ""
        raise InvalidInputError(
            f"{path} is {'truncated' if len(content) < expected else 'too long'}: it has {more}{len(content):,} bytes, "
            f"but its header gives {' x '.join(map(str, shape))}, {expected:,} bytes; replace it"
        )
    if 0 in shape:
        raise InvalidInputError(f"{path} is empty: its header gives {' x '.join(map(str, shape))}; replace it")
    return np.frombuffer(content, np.uint8, offset=header_bytes).reshape(shape)


def _content(path: Path) -> bytes:
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as stream:
                return _claimed_part(stream)
        return path.read_bytes()
    except EOFError:
        raise InvalidInputError(f"{path} is truncated: its compressed data are incomplete; replace it") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InvalidInputError(f"{path} is damaged: {error}; replace it") from error


def _claimed_part(stream: gzip.GzipFile) -> bytes:
    """What the header of an IDX file claims, and one byte more if there is one.

    A small compressed file can hold any number of zeros, so the rest is not unpacked.
    """
    content = bytearray(stream.read(4))
    n_dimensions = content[3] if len(content) == 4 and content[3] <= 3 else 0
    content += stream.read(4 * n_dimensions)
    lengths = struct.unpack(f">{(len(content) - 4) // 4}I", content[4:]) if len(content) % 4 == 0 and content else ()
    wanted = len(content) + math.prod(lengths) + 1
    while len(content) < wanted and (piece := stream.read(min(BYTES_PER_READ, wanted - len(content)))):
        content += piece
    return bytes(content)


def _from_openml(name: str, fetch: Callable[..., Any] = fetch_openml) -> ImageSet:
    """OpenML's copy, which has the training images first, downloaded or cached by scikit-learn."""
    facts = DATASETS[name]
    try:
        bunch = fetch(
            facts.openml_name, version=1, as_frame=False, parser="pandas" if find_spec("pandas") else "liac-arff"
        )
    except Exception as error:  # scikit-learn and the network raise many types
        raise DataUnavailableError(
            f"{facts.title} is not in scikit-learn's cache and cannot be downloaded from openml.org ({error}); pass a "
            f"folder with {_expected_names()} as data (--data)"
        ) from error
    images, labels = np.asarray(bunch.data).astype(np.uint8), np.asarray(bunch.target).astype(np.uint8)
    side = round(images.shape[1] ** 0.5)
    middle = OPENML_TRAINING_IMAGES
    return ImageSet(
        name=name,
        train_images=images[:middle],
        train_labels=labels[:middle],
        test_images=images[middle:],
        test_labels=labels[middle:],
        image_shape=(side, side),
        origin="openml.org",
    )


def _from_scikit_learn(name: str) -> ImageSet:
    """scikit-learn's digits; every fourth image is a test image."""
    bunch = load_digits()
    images, labels = bunch.data.astype(np.uint8), bunch.target.astype(np.uint8)
    is_test = np.arange(len(labels)) % 4 == 3
    return ImageSet(
        name=name,
        train_images=images[~is_test],
        train_labels=labels[~is_test],
        test_images=images[is_test],
        test_labels=labels[is_test],
        image_shape=(8, 8),
        origin="scikit-learn",
    )
