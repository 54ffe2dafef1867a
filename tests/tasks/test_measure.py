"""What a task measures for a criterion, and the scores of its columns."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tasks.test_columns import SHAPES, Example

from fxdask import FisherNetworkClassifier
from fxdask.kernels import projections, statistics
from fxdask.kernels.criteria.base import Measurements, Need
from fxdask.kernels.criteria.table import CRITERIA
from fxdask.kernels.moments import class_moments
from fxdask.kernels.sorted_columns import sort_columns
from fxdask.kernels.statistics import class_statistics
from fxdask.kernels.weights import weight_block
from fxdask.planning import fit_plan
from fxdask.tasks import measure
from fxdask.tasks.measure import measure_block
from fxdask.tasks.telemetry import TaskCounters

RANKED_BY_NODES = sorted(name for name, criterion in CRITERIA.items() if Need.ROWS not in criterion.needs)
STREAMED = [name for name in RANKED_BY_NODES if not CRITERIA[name].orders_values]


def measured_block(example, criterion, *, streamed=False):
    example.job = replace(example.job, criterion=criterion)
    columns = example.columns()
    return measure_block(example.job, columns, example.block.start, TaskCounters(), streamed=streamed)


@given(
    shape=SHAPES,
    criterion=st.sampled_from(RANKED_BY_NODES),
    at_a_time=st.integers(1, 9999),
)
@settings(max_examples=20)
def test_scores_are_those_of_all_values_at_once(shape, criterion, at_a_time):
    example = Example(**{**shape, "n_samples": shape["n_samples"] // 4 + 8})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "BYTES_PER_SORTED_GROUP", at_a_time)
        found = measured_block(example, criterion)
    columns = example.columns()
    values = columns.all_values()
    whole = Measurements(
        priors=example.job.priors,
        tolerance=columns.tolerance,
        statistics=class_statistics(values, columns.tolerance, "mean", "std"),
        moments=class_moments(values),
        columns=sort_columns(values, np.arange(example.block.start, example.block.stop)),
        seed=example.job.seed,
    )
    expected = np.broadcast_to(CRITERIA[criterion].score(whole), found.scores.shape)
    assert found.scores.tobytes() == expected.tobytes()
    assert found.statistics.spread.tobytes() == whole.statistics.spread.tobytes()


@given(shape=SHAPES, criterion=st.sampled_from(STREAMED), tiles=st.integers(1, 2))
@settings(max_examples=15)
def test_streamed_values_give_the_same_scores(shape, criterion, tiles):
    whole = measured_block(Example(**shape), criterion)
    streamed = measured_block(Example(**shape, samples_per_chunk=768 * tiles), criterion, streamed=True)
    assert streamed.scores.tobytes() == whole.scores.tobytes()


@pytest.mark.parametrize("criterion", RANKED_BY_NODES)
def test_a_column_that_is_constant_over_all_classes_is_never_selected(criterion, monkeypatch):
    example = Example(seed=0, n_samples=200, n_classes=3, normalize=None, index=0)
    weights = weight_block(example.job.seed, example.block.start, example.block.stop, example.X.shape[1])
    weights[4] = 0.0
    monkeypatch.setattr(projections, "weight_block", lambda *_: weights)
    scores = measured_block(example, criterion).scores
    assert np.isneginf(scores[:, 4]).all()
    assert np.isfinite(np.delete(scores, 4, axis=1)).all()


def test_a_fit_that_selects_values_has_the_bits_of_one_that_sorts(monkeypatch):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((3_000, 8), dtype=np.float32), np.arange(3_000) % 2
    sorting = FisherNetworkClassifier(100).fit(X, y)
    monkeypatch.setattr(fit_plan, "FEWEST_VALUES_TO_COMPILE", 1)
    used = []
    monkeypatch.setattr(
        measure, "selected_statistics", lambda *args: used.append(1) or statistics.selected_statistics(*args)
    )
    selecting = FisherNetworkClassifier(100).fit(X, y)
    assert used, "the plan said that values are selected"
    assert np.array_equal(selecting.divergences_, sorting.divergences_)
