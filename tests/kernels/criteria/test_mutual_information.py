import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.criteria.columns import column_part, labelled_columns, measure
from sklearn.feature_selection import mutual_info_classif
from sklearn.feature_selection._mutual_info import _compute_mi_cd

from fxdask.kernels.criteria.mutual_information import MUTUAL_INFORMATION, nearest_neighbour_information


def estimate(values, codes):
    """The kernel's estimate for distinct values, which it wants class by class."""
    counts = np.bincount(codes)
    classes = [np.sort(values[codes == k]) for k in range(len(counts))]
    return nearest_neighbour_information(lambda: iter([classes]), counts)


def entropy(codes):
    share = np.bincount(codes) / len(codes)
    return -(share * np.log(share)).sum()


@given(
    drawn=labelled_columns(max_classes=3, max_samples=45, max_columns=1),
    seed=st.integers(0, 99),
    noise=st.sampled_from([1e-10, 0.1]),
)
@settings(max_examples=30)
def test_with_the_same_noise_estimates_equal_the_oracle_and_scikit_learn(drawn, seed, noise):
    (column,), codes = drawn
    column = column / (np.std(column.astype(np.float64)) or 1.0)
    noisy = column + noise * np.random.default_rng(seed).standard_normal(len(codes))
    found = estimate(noisy, codes)
    assert found == pytest.approx(oracles.nearest_neighbour_information(noisy.tolist(), codes.tolist()), abs=1e-12)
    # For fewer samples scikit-learn's neighbours come from products, whose distances have errors of 1e-8.
    if np.bincount(codes).min() >= 8:
        assert found == pytest.approx(min(_compute_mi_cd(noisy, codes, 3), entropy(codes)), abs=1e-9)


def test_large_counts_of_neighbours_use_the_series():
    """Four values far from the many of the other class have neighbours beyond all of them."""
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.standard_normal(20_000), [-50.0, -40.0, 40.0, 51.0]])
    codes = np.repeat([0, 1], [20_000, 4])
    assert estimate(values, codes) == pytest.approx(_compute_mi_cd(values, codes, 3), abs=1e-9)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_scores_of_continuous_columns_are_those_of_mutual_info_classif(n_classes):
    rng = np.random.default_rng(n_classes)
    codes = rng.integers(0, n_classes, 400)
    values = (rng.standard_normal((5, 400)) * (1 + codes) + np.arange(5)[:, None] * codes).astype(np.float32)
    expected = mutual_info_classif(values.T, codes, discrete_features=False, random_state=0)
    found = MUTUAL_INFORMATION.score(measure(values, codes))
    assert found.shape == (1, 5)
    np.testing.assert_allclose(found[0], np.minimum(expected, entropy(codes)), atol=1e-9)


def test_scores_of_columns_with_ties_differ_by_the_noise_alone():
    """The noise breaks the ties, so the estimate varies; the mean over seeds does not."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 2, 300)
    values = np.round(rng.standard_normal((1, 300)) + codes).astype(np.float32)
    ours = [MUTUAL_INFORMATION.score(measure(values, codes, seed=seed))[0, 0] for seed in range(20)]
    theirs = [mutual_info_classif(values.T, codes, discrete_features=False, random_state=s)[0] for s in range(20)]
    assert np.std(ours) > 0
    assert np.mean(ours) == pytest.approx(np.mean(theirs), abs=4 * np.std(theirs) / np.sqrt(10))


@given(drawn=labelled_columns(), order=st.integers(0, 99), per_tile=st.integers(1, 9))
@settings(max_examples=25)
def test_scores_depend_neither_on_the_order_of_samples_nor_on_the_other_columns(drawn, order, per_tile):
    values, codes = drawn
    scores = MUTUAL_INFORMATION.score(measure(values, codes, seed=3))
    assert ((scores >= 0) & (scores <= entropy(codes) + 1e-15)).all()
    order = np.random.default_rng(order).permutation(len(codes))
    again = measure(values[:, order], codes[order], seed=3, per_tile=per_tile)
    assert MUTUAL_INFORMATION.score(again).tobytes() == scores.tobytes()
    last = column_part(again, slice(len(values) - 1, None))
    assert MUTUAL_INFORMATION.score(last)[0, 0] == scores[0, -1]


def test_a_constant_column_tells_nothing_and_a_separator_nearly_everything():
    codes = np.arange(200) % 2
    values = np.array([np.full(200, 0.1), codes * 5.0], np.float32)
    scores = MUTUAL_INFORMATION.score(measure(values, codes))
    assert scores[0, 0] == 0
    assert 0.98 * np.log(2) < scores[0, 1] <= np.log(2)


def test_missing_values_and_classes_of_one_value_are_left_out():
    rng = np.random.default_rng(0)
    codes = np.arange(60) % 3
    values = rng.standard_normal((1, 60)).astype(np.float32)
    values[0, codes == 1] = np.nan
    values[0, 1] = 0.5
    kept = codes != 1
    alone = measure(values[:, kept], codes[kept] // 2)
    assert MUTUAL_INFORMATION.score(measure(values, codes)).tolist() == MUTUAL_INFORMATION.score(alone).tolist()
