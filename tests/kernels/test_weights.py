import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fxdask.kernels.weights import ROWS_PER_DRAW, weight_block, weight_rows


def test_the_number_of_nodes_does_not_change_the_first_rows():
    few = weight_block(3, 0, 1_000, 20)
    many = weight_block(3, 0, 100_000, 20)
    assert np.array_equal(few, many[:1_000])


@given(
    seed=st.integers(0, 2**70),
    start=st.integers(0, 300),
    length=st.integers(0, 200),
    n_features=st.integers(1, 9),
)
def test_a_row_depends_on_seed_and_node_alone(seed, start, length, n_features):
    block = weight_block(seed, start, start + length, n_features)
    one_by_one = [weight_rows(seed, [node], n_features)[0] for node in range(start, start + length)]
    assert block.shape == (length, n_features)
    assert block.dtype == np.float32
    assert np.array_equal(block, np.array(one_by_one, np.float32).reshape(length, n_features))


def test_rows_have_the_requested_order():
    nodes = [500, 3, 64, 3, 63]
    rows = weight_rows(9, nodes, 4)
    assert np.array_equal(rows[1], rows[3])
    assert np.array_equal(rows, weight_block(9, 0, 501, 4)[nodes])


def test_weights_are_standard_normal():
    """Over 200 seeds the p-values of two normality tests are uniform, so the test does not depend on a chosen seed."""
    draws = [weight_block(seed, 0, 4 * ROWS_PER_DRAW, 100).ravel().astype(float) for seed in range(200)]
    for test in (stats.normaltest, lambda drawn: stats.kstest(drawn, "norm")):
        p_values = [test(drawn).pvalue for drawn in draws]
        assert stats.kstest(p_values, "uniform").pvalue > 0.001
    everything = np.concatenate(draws)
    assert abs(everything.mean()) < 4 / np.sqrt(len(everything))
    assert abs(everything.var() - 1) < 4 * np.sqrt(2 / len(everything))


def test_rows_and_seeds_are_not_correlated():
    first, second = weight_block(0, 0, 200, 2_000), weight_block(1, 0, 200, 2_000)
    between = np.corrcoef(first, second)
    np.fill_diagonal(between, 0)
    # Of 80,000 correlations of 2,000 values the largest may be 4.5 standard deviations by chance, but not 6.
    assert np.abs(between).max() < 6 / np.sqrt(2_000)
