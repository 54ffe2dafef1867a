from itertools import pairwise

import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.criteria.columns import labelled_columns

from fxdask.kernels.criteria.base import Measurements, Rows
from fxdask.kernels.criteria.relief import (
    RELIEF,
    Anchors,
    ColumnRanges,
    RowBlock,
    merge_neighbours,
    nearest,
    neighbour_rows,
    no_neighbours,
    relief_weights,
    spread_anchors,
)


def score(values, codes, n_anchors=None):
    priors = np.bincount(codes) / len(codes)
    rows = Rows(values, codes, n_anchors)
    return RELIEF.score(Measurements(priors=priors, tolerance=np.zeros((len(priors), values.shape[1])), rows=rows))


@given(drawn=labelled_columns(max_samples=25), n_anchors=st.one_of(st.none(), st.integers(1, 30)))
@settings(max_examples=15)
def test_weights_equal_the_oracle(drawn, n_anchors):
    values, codes = drawn[0].T.copy(), drawn[1]
    anchors = spread_anchors(codes, int(codes.max()) + 1, n_anchors)
    found = score(values, codes, n_anchors)
    expected = oracles.relief(values, codes, anchors.tolist(), (np.bincount(codes) / len(codes)).tolist())
    assert found.shape == (1, values.shape[1])
    np.testing.assert_allclose(found[0], expected, rtol=1e-12, atol=1e-12)


@given(drawn=labelled_columns(max_columns=5), cuts=st.lists(st.integers(1, 39), max_size=4), order=st.randoms())
@settings(max_examples=25)
def test_weights_do_not_depend_on_blocks_and_their_order(drawn, cuts, order):
    values, codes = drawn[0].T.copy(), drawn[1]
    n_classes, n = int(codes.max()) + 1, len(codes)
    ranges = ColumnRanges(values.min(axis=0).astype(float), values.max(axis=0).astype(float))
    scaled, rows = ranges.scaled(values), spread_anchors(codes, n_classes, 7)
    anchors = Anchors(rows, codes[rows], scaled[rows])
    edges = sorted({0, n, *(cut for cut in cuts if cut < n)})
    blocks = [RowBlock(scaled[a:b], codes[a:b], a) for a, b in pairwise(edges)]
    order.shuffle(blocks)
    in_turn = merged = no_neighbours(len(rows), n_classes)
    for block in blocks:
        in_turn = nearest(anchors, block, in_turn)
        merged = merge_neighbours(nearest(anchors, block, no_neighbours(len(rows), n_classes)), merged)
    priors = np.bincount(codes) / n
    for found in (in_turn, merged):
        weights = relief_weights(anchors, found, scaled[neighbour_rows(found)], priors)
        assert weights.tobytes() == score(values, codes, 7).tobytes()


def test_columns_that_help_only_together_are_found():
    """The class is the parity of two columns, of which each alone tells nothing."""
    rng = np.random.default_rng(0)
    values = rng.uniform(-1, 1, (400, 6)).astype(np.float32)
    weights = score(values, (values[:, 0] * values[:, 1] > 0).astype(int))[0]
    assert set(np.argsort(weights)[-2:]) == {0, 1}


def test_a_block_of_many_rows_takes_several_tiles():
    rng = np.random.default_rng(0)
    values, codes = rng.standard_normal((700, 5)).astype(np.float32), np.arange(700) % 2
    anchors = spread_anchors(codes, 2, 3)
    expected = oracles.relief(values, codes, anchors.tolist(), [0.5, 0.5])
    np.testing.assert_allclose(score(values, codes, 3)[0], expected, rtol=1e-12)


def test_anchors_are_spread_over_the_classes_by_their_shares():
    codes = np.repeat([0, 1, 2], [70, 25, 5])
    assert np.bincount(codes[spread_anchors(codes, 3, 20)]).tolist() == [14, 5, 1]
    assert np.bincount(codes[spread_anchors(codes, 3, 4)]).tolist() == [2, 1, 1]
    assert spread_anchors(codes, 3, 100).tolist() == spread_anchors(codes, 3, None).tolist() == list(range(100))
    assert spread_anchors(np.zeros(9, int), 1, 3).tolist() == [1, 4, 7]


def test_a_constant_column_weighs_nothing():
    values = np.array([[1.0, 0.0], [1.0, 0.1], [1.0, 5.0], [1.0, 5.1]], np.float32)
    assert score(values, np.array([0, 0, 1, 1]))[0] == pytest.approx([0, 5 / 5.1 - 0.1 / 5.1])
