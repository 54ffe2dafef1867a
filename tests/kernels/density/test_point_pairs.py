import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fxdask.kernels.density import point_pairs as pairs_module
from fxdask.kernels.density.point_pairs import pairs_of


@given(
    ranges=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9)), max_size=20),
    at_a_time=st.integers(1, 40),
)
def test_every_pair_occurs_once_in_groups_of_bounded_size(ranges, at_a_time):
    start = np.array([low for low, _ in ranges], dtype=np.intp)
    stop = start + np.array([length for _, length in ranges], dtype=np.intp)
    samples = np.arange(40.0) ** 2
    before, pairs_module.PAIRS_AT_A_TIME = pairs_module.PAIRS_AT_A_TIME, at_a_time
    try:
        parts = list(pairs_of(start, stop))
    finally:
        pairs_module.PAIRS_AT_A_TIME = before
    found = [pair for part in parts for pair in zip(part.point.tolist(), part.sample.tolist(), strict=True)]
    assert found == [(i, q) for i in range(len(ranges)) for q in range(start[i], stop[i])]
    assert all(len(part.point) <= at_a_time + 9 for part in parts)
    totals = np.concatenate([np.empty(0), *(part.totals(samples[part.sample]) for part in parts)])
    assert totals.tolist() == [samples[low:high].sum() for low, high in zip(start, stop, strict=True)]
