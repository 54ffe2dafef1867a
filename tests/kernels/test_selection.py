import math

import numpy as np
import oracles
from hypothesis import given
from hypothesis import strategies as st

from fxdask.kernels.selection import NO_NODE, TopNodes, merge_top, top_nodes

few_values = st.sampled_from([-math.inf, -1.5, 0.0, 0.0, 2.0, 2.0, math.inf])


def as_lists(top: TopNodes):
    return [[node for node in row if node != NO_NODE] for row in top.nodes.tolist()]


@given(scores=st.lists(few_values, min_size=1, max_size=40), n_selected=st.integers(1, 12))
def test_top_nodes_with_ties_and_infinities_equal_the_oracle(scores, n_selected):
    top = top_nodes(np.array([scores]), 0, n_selected)
    assert as_lists(top)[0] == oracles.top_nodes(scores, n_selected)
    kept = top.nodes[0] != NO_NODE
    assert np.array_equal(top.scores[0, kept], np.array(scores)[top.nodes[0, kept]])
    assert (top.scores[0, ~kept] == -math.inf).all()


@given(data=st.data(), n_selected=st.integers(1, 6), block=st.integers(1, 11), n_classes=st.integers(2, 3))
def test_merge_does_not_depend_on_order_or_grouping(data, n_selected, block, n_classes):
    scores = np.array(
        data.draw(st.lists(st.lists(few_values, min_size=n_classes, max_size=n_classes), min_size=1, max_size=30))
    ).T
    parts = [top_nodes(scores[:, s : s + block], s, n_selected) for s in range(0, scores.shape[1], block)]
    parts = data.draw(st.permutations(parts))
    while len(parts) > 1:
        take = data.draw(st.integers(2, len(parts)))
        parts = [merge_top(parts[:take]), *parts[take:]]
    assert as_lists(parts[0]) == [oracles.top_nodes(row, n_selected) for row in scores]
