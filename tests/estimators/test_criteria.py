"""Fits that rank nodes by each of the criteria."""

import numpy as np
import pytest
from small import one_sentence

import fxdask
from fxdask import CRITERIA, FisherNetworkClassifier
from fxdask.errors import InvalidInputError, MemoryPlanError
from fxdask.planning.fit_search import plan_fit
from fxdask.planning.fit_size import FitSize
from fxdask.planning.machine import Resources

OF_NODES = sorted(set(CRITERIA) - {"relief"})
MIB = 2**20


@pytest.mark.parametrize("criterion", OF_NODES)
def test_every_criterion_selects_nodes_whatever_the_blocks(three_blobs, criterion, tmp_path):
    X, y = three_blobs
    clf = FisherNetworkClassifier(64, 4, criterion=criterion, store=tmp_path / "model.zarr", overwrite=True).fit(X, y)
    assert clf.score(X, y) > 0.8
    assert clf.divergences_.shape == (3, 64)
    if not CRITERIA[criterion].per_class:
        assert (clf.divergences_ == clf.divergences_[0]).all()
    again = FisherNetworkClassifier(64, 4, criterion=criterion, nodes_per_block=7).fit(X, y)
    assert again.divergences_.tobytes() == clf.divergences_.tobytes()
    loaded = fxdask.load(tmp_path / "model.zarr")
    assert np.array_equal(loaded.selected_nodes_, again.selected_nodes_)
    assert loaded.criterion == criterion


def test_relief_ranks_the_pool_of_a_joint_selection_only(three_blobs):
    with pytest.raises(InvalidInputError, match="criterion='relief' compares whole rows"):
        FisherNetworkClassifier(64, 4, criterion="relief").fit(*three_blobs)
    clf = FisherNetworkClassifier(64, 4, criterion="relief", selection="joint").fit(*three_blobs)
    assert clf.score(*three_blobs) > 0.8


def test_columns_that_must_be_sorted_are_not_streamed():
    size = FitSize(n_nodes=2_000, n_features=50, class_counts=(700_000, 700_000), n_selected=10, sorts_columns=True)
    small = Resources(limit=512 * MIB, baseline=140 * MIB, threads=1, processes=2)
    with pytest.raises(MemoryPlanError) as error:
        plan_fit(size, resources=small)
    message = one_sentence(error)
    assert message.startswith("a criterion that sorts all values of a node needs ")
    assert "but a task may use " in message
    assert message.endswith("or choose another criterion")
    large = Resources(limit=64 * 1024 * MIB, baseline=140 * MIB, threads=1, processes=2)
    assert not plan_fit(size, resources=large).is_streamed
