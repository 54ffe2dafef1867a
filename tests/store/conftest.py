"""A finished model that tests of stores share."""

from pathlib import Path

import pytest
from small import fit


@pytest.fixture(scope="session")
def original(tmp_path_factory):
    """A finished model, of which tests change copies."""
    return Path(fit(store=tmp_path_factory.mktemp("original") / "model.zarr").store_)
