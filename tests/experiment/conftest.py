import numpy as np
import pytest
from experiment.small_runs import small
from idx_files import write_idx_folder
from sklearn.datasets import load_digits

from fxdask.experiment import report


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


@pytest.fixture(scope="module", autouse=True)
def figures_drawn_once():
    """The figures depend on the example alone, which most tests share, so that each is drawn once."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("response_figure", "divergence_figure", "density_figure"):
            patch.setattr(report, name, drawn_once(getattr(report, name)))
        yield


def drawn_once(draw):
    drawn = []  # the examples are kept too, so that no other one can have the same identity

    def found(example, names):
        for known, known_names, figure in drawn:
            if known is example and known_names == names:
                return figure
        drawn.append((example, names, draw(example, names)))
        return drawn[-1][2]

    return found
