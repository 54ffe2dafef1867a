"""Criteria: what a fit must measure for them, and the read-only table of all."""

from types import MappingProxyType

import numpy as np
import pytest
from small import fit, one_sentence

import fxdask
from fxdask.errors import InvalidInputError
from fxdask.kernels.criteria.base import Criterion, Need
from fxdask.workflows import settings


def made_up(*needs):
    """A criterion that gives every column the same score."""

    def score(columns):
        return np.zeros_like(columns.statistics.location)

    return Criterion(name="made_up", needs=frozenset(needs), score=score, summary="The same score for every column")


def use(monkeypatch, criterion):
    """Put a criterion into a copy of the table that checks the settings."""
    monkeypatch.setattr(settings, "CRITERIA", MappingProxyType({**settings.CRITERIA, criterion.name: criterion}))


def test_a_criterion_that_needs_rows_is_refused_without_a_pool(monkeypatch, tmp_path):
    use(monkeypatch, made_up(Need.LOCATION_AND_SPREAD, Need.ROWS))
    message = (
        "criterion='made_up' compares whole rows, so it ranks only the pool of a joint selection, "
        "but selection='top' has none; pass selection=\"joint\", or choose another criterion"
    )
    with pytest.raises(InvalidInputError) as error:
        fit(criterion="made_up", store=tmp_path / "model.zarr")
    assert one_sentence(error) == message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("need", [need for need in Need if need is not Need.ROWS])
def test_the_refusal_names_the_missing_measurement(monkeypatch, need):
    use(monkeypatch, made_up(need))
    settings._check_needs("made_up", "top")
    monkeypatch.setattr(settings, "MEASURED_BY_A_FIT", settings.MEASURED_BY_A_FIT - {need})
    with pytest.raises(InvalidInputError, match=f"needs {need.value}, which a fit does not measure"):
        fit(criterion="made_up")


def test_the_public_table_of_criteria_is_read_only():
    before = dict(fxdask.CRITERIA)
    with pytest.raises(TypeError, match="does not support item assignment"):
        fxdask.CRITERIA["mine"] = made_up(Need.LOCATION_AND_SPREAD)
    assert dict(fxdask.CRITERIA) == before
    with pytest.raises(InvalidInputError, match="criterion='mine' is not known"):
        fit(criterion="mine")
