import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, settings

from fxdask import FisherNetworkClassifier, score_plan

settings.register_profile(
    "project", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("project")


@pytest.fixture(scope="session")
def two_blobs():
    """240 samples of two classes with one mean and different variances: what the plain Fisher criterion cannot see."""
    rng = np.random.default_rng(5)
    X = rng.standard_normal((240, 6)).astype(np.float32)
    y = np.arange(240) % 2
    X[y == 1, :3] *= 4
    return X, y


@pytest.fixture(scope="session")
def three_blobs():
    """300 samples of three classes that differ in mean and spread, labelled by words."""
    rng = np.random.default_rng(6)
    codes = np.arange(300) % 3
    X = rng.standard_normal((300, 5)) * (1 + codes[:, None]) + 4 * codes[:, None]
    return X, np.array(["ash", "birch", "cedar"])[codes]


@pytest.fixture
def wide(tmp_path, monkeypatch):
    """A model, and a test set of 40 chunks that are scored one by one."""
    monkeypatch.setattr(score_plan, "BYTES_PER_TASK", 1)
    rng = np.random.default_rng(3)
    X = rng.standard_normal((4_000, 30)).astype(np.float32)
    X[::2] *= 1.3
    y = np.arange(4_000) % 2
    model = FisherNetworkClassifier(200, 5, store=tmp_path / "model.zarr").fit(X[:600], y[:600])
    zarr.create_array(tmp_path / "X.zarr", data=X, chunks=(100, 30))
    return model, X, y


def pytest_addoption(parser):
    parser.addoption(
        "--full",
        action="store_true",
        help="all twenty seeds of the runs whose workers are killed, and every moment at which others are",
    )


def pytest_generate_tests(metafunc):
    if "chaos_seed" in metafunc.fixturenames:
        metafunc.parametrize("chaos_seed", range(20 if metafunc.config.getoption("--full") else 1))
    if "share" in metafunc.fixturenames:
        metafunc.parametrize("share", (0.1, 0.5, 0.9) if metafunc.config.getoption("--full") else (0.5,))
