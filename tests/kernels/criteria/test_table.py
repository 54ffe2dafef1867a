"""What all criteria have in common."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.criteria.columns import grouped, labelled_columns, measure

from fxdask.kernels.criteria.base import Measurements, Need, Rows
from fxdask.kernels.criteria.table import CRITERIA
from fxdask.kernels.statistics import class_statistics


def measured_for_all(values, codes, **layout):
    measured = measure(values, codes, tolerance=1e-12, **layout)
    own = grouped(values, codes, len(measured.priors), layout.get("per_tile"))
    statistics = class_statistics(own, measured.tolerance)
    return replace(measured, statistics=statistics, rows=Rows(np.ascontiguousarray(values.T), codes))


@given(drawn=labelled_columns(max_samples=30, max_columns=3), chunk=st.integers(1, 30), per_tile=st.integers(1, 9))
@settings(max_examples=12)
def test_scores_are_defined_and_have_the_same_bits_for_every_layout(drawn, chunk, per_tile):
    values, codes = drawn
    measured, again = (
        measured_for_all(values, codes, **layout) for layout in ({}, {"chunk": chunk, "per_tile": per_tile})
    )
    for criterion in CRITERIA.values():
        scores = criterion.score(measured)
        assert scores.shape == (len(measured.priors) if criterion.per_class else 1, len(values))
        assert not np.isnan(scores).any()
        assert scores.tobytes() == criterion.score(again).tobytes()
        if criterion.p_values is not None:
            p_values = criterion.p_values(measured, scores)
            assert p_values.shape == scores.shape
            assert ((p_values >= 0) & (p_values <= 1)).all()


@pytest.mark.parametrize("name", sorted(CRITERIA))
def test_a_better_separated_column_scores_higher_and_a_constant_one_lowest(name):
    rng = np.random.default_rng(0)
    codes = np.arange(200) % 2
    noise = rng.standard_normal((3, 200))
    values = np.array([noise[0], noise[1] + codes, noise[2] + 6 * codes, np.full(200, 2.0)], np.float32)
    scores = CRITERIA[name].score(measured_for_all(values, codes))
    assert (scores[:, 2] > scores[:, 1]).all()
    assert (scores[:, 1] > scores[:, 0]).all() or name == "volume_of_overlap"
    assert (scores[:, 3] <= np.maximum(scores[:, 0], 0)).all()
    assert np.isneginf(scores[:, 3]).all() == (Need.LOCATION_AND_SPREAD in CRITERIA[name].needs)


@pytest.mark.parametrize("name", sorted(CRITERIA))
def test_what_was_not_measured_is_named(name):
    nothing = Measurements(priors=np.array([0.5, 0.5]), tolerance=np.zeros((2, 1)))
    (need,) = CRITERIA[name].needs
    with pytest.raises(ValueError, match=f"the criterion needs {need.value}, which were not measured"):
        CRITERIA[name].score(nothing)
