import numpy as np
import pytest
from experiment.small_runs import small
from idx_files import write_idx_folder
from sklearn.datasets import load_digits


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """scikit-learn's digits as IDX files: about 60 training and 20 test images per class."""
    digits = load_digits()
    images, labels = digits.images.astype(np.uint8), digits.target
    return write_idx_folder(
        tmp_path_factory.mktemp("idx") / "digits", images[:600], labels[:600], images[600:800], labels[600:800]
    )


@pytest.fixture(scope="session")
def result(folder):
    """The small run, uninterrupted, which other runs must match."""
    return small(folder)
