import warnings
from itertools import pairwise

import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fxdask.kernels.preprocessing import (
    Preprocessing,
    chosen_normalization,
    merge_summaries,
    norm_exponents,
    origin_probes,
    origin_quartiles,
    preprocessing_from,
    summarize,
    typical_norms,
)


def fitted_preprocessing(X, how=None, steps=None):
    edges = [0, *(steps or []), len(X)]
    parts = [summarize(X[a:b], how) for a, b in pairwise(edges)]
    return preprocessing_from(merge_summaries(parts), origin_quartiles(X[origin_probes(*X.shape)], how), how, X.dtype)


@given(seed=st.integers(0, 99), rows=st.integers(2, 40), n_features=st.integers(2, 6), cut=st.integers(1, 39))
@pytest.mark.parametrize("how", [None, "sample", "feature"])
def test_samples_equal_the_definition(how, seed, rows, n_features, cut):
    X = np.random.default_rng(seed).normal(3, 2, (rows, n_features))
    got = fitted_preprocessing(X, how, [cut] if cut < rows else None)
    want = oracles.normalize(X, how)
    np.testing.assert_allclose(got(X), want - _scaled_origin(X, want, how), atol=2e-6)
    assert got.largest == pytest.approx(np.abs(want - _scaled_origin(X, want, how)).max(), rel=1e-9)


def _scaled_origin(X, want, how):
    """The origin in units of the normalised samples; features are moved before they are scaled."""
    return oracles.origin(want) if how != "feature" else (oracles.origin(X) - X.mean(axis=0)) / X.std(axis=0)


def test_a_large_offset_does_not_cost_digits_of_float32():
    small = np.random.default_rng(0).standard_normal((50, 3))
    X = small + 1e9
    exact = (X - 1e9) - oracles.origin(X - 1e9)
    np.testing.assert_allclose(fitted_preprocessing(X)(X), exact, atol=1e-6)


def test_a_constant_feature_becomes_exactly_zero():
    X = np.random.default_rng(1).standard_normal((30, 2))
    X[:, 1] = 0.1
    for how in (None, "feature"):
        assert (fitted_preprocessing(X, how, [7, 19])(X)[:, 1] == 0).all()


def test_a_constant_sample_becomes_zero_before_the_shift():
    X = np.random.default_rng(2).standard_normal((20, 4))
    X[3] = 0.1
    got = fitted_preprocessing(X, "sample")
    np.testing.assert_allclose(got(X)[3], -got.shift, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float16", "float32", "bool", ">f4"])
def test_small_dtypes_equal_their_float64_copy(dtype):
    X = np.random.default_rng(3).integers(0, 2 if dtype == "bool" else 255, (40, 5)).astype(dtype)
    got = fitted_preprocessing(X)
    assert got.shift.dtype == np.float32
    assert np.array_equal(got(X), got(X.astype(np.float64)))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("how", [None, "sample", "feature"])
def test_a_summary_detects_nan_and_infinity(bad, how):
    X = np.ones((6, 3)) * np.arange(3)
    assert summarize(X, how).is_finite
    X[4, 1] = bad
    assert not summarize(X, how).is_finite


@pytest.mark.parametrize("how", [None, "sample", "feature"])
@pytest.mark.parametrize("size", [1e30, 1e38, 1e39, 1e300, 1.7e308])
def test_huge_samples_stay_finite_and_keep_their_direction(how, size):
    X = np.random.default_rng(4).standard_normal((50, 3))
    got = fitted_preprocessing(X, how)
    far = np.array([[size, -size / 2, 0.0], [0.0, 0.0, -size]])
    near = got.apply_checked(X)
    assert np.array_equal(near, got(X))
    out = got.apply_checked(far).astype(float)
    assert np.isfinite(out).all()
    assert (np.abs(out) * 3 <= 3.41e38 / 8).all()
    if how is None:
        np.testing.assert_allclose(out[0] / out[0, 0], [1, -0.5, 0], atol=1e-6)
    if how != "sample":
        assert (np.abs(out).max(axis=1) > 1e29).all()


@pytest.mark.parametrize("scale", [1e-300, 1e-150, 1e150, 1e300])
def test_sample_normalization_does_not_depend_on_the_scale(scale):
    X = np.random.default_rng(5).standard_normal((30, 4))
    np.testing.assert_allclose(
        fitted_preprocessing(X * scale, "sample")(X * scale), fitted_preprocessing(X, "sample")(X), atol=1e-6
    )


@pytest.mark.parametrize("outlier", [1e6, -1e15, 1e30])
def test_an_outlier_does_not_move_the_origin(outlier):
    X = np.random.default_rng(6).standard_normal((400, 3))
    X[17, 1] = outlier
    shift = fitted_preprocessing(X).shift
    assert np.abs(shift).max() < 0.3
    assert shift[1] == pytest.approx(oracles.quantile(X[:, 1], 0.5))
    assert shift[0] == pytest.approx(X[:, 0].mean())


@given(n_samples=st.integers(1, 10**7), n_features=st.integers(1, 10**7))
def test_origin_probes_are_spread_over_all_samples(n_samples, n_features):
    probes = origin_probes(n_samples, n_features)
    assert (np.diff(probes) > 0).all()
    assert 0 <= probes[0] <= probes[-1] < n_samples
    assert min(n_samples, 16) <= len(probes) <= 512
    assert len(probes) * n_features <= max(16 * n_features, 2**21)
    stretches = probes * len(probes) // n_samples
    assert np.abs(stretches - np.arange(len(probes))).max() <= 1


@given(
    seed=st.integers(0, 999),
    rows=st.integers(1, 60),
    n_classes=st.integers(1, 3),
    exponent=st.integers(-40, 35),
    cut=st.integers(0, 60),
)
def test_scales_are_median_exponents_however_the_samples_are_cut(seed, rows, n_classes, exponent, cut):
    rng = np.random.default_rng(seed)
    X = (rng.standard_cauchy((rows, 4)) * 10.0**exponent).astype(np.float32)
    X[rng.random(rows) < 0.2] = 0
    codes = rng.integers(0, n_classes, rows)
    parts = [norm_exponents(X[some], codes[some], n_classes) for some in (slice(cut, None), slice(cut))]
    own = [oracles.typical_norm(X[codes == k]) for k in range(n_classes)]
    assert typical_norms(sum(parts)).tolist() == [max(norm, max(own) / 2**29) for norm in own]


def test_a_few_outliers_do_not_change_a_scale():
    X = np.random.default_rng(7).standard_normal((100, 5)).astype(np.float32)
    codes = np.zeros(100, np.uint8)
    before = typical_norms(norm_exponents(X, codes, 1))
    X[:5] *= np.float32(1e20)
    assert typical_norms(norm_exponents(X, codes, 1)) == before


def automatic(X, cuts=()):
    """What normalize="auto" chooses for samples that are read in parts."""
    X = np.asarray(X)
    edges = [0, *sorted(c for c in cuts if 0 < c < len(X)), len(X)]
    summary = merge_summaries([summarize(X[a:b], "feature") for a, b in pairwise(edges)])
    return chosen_normalization(summary, origin_quartiles(X[origin_probes(*X.shape)], None))


@given(
    seed=st.integers(0, 999),
    rows=st.integers(2, 60),
    exponents=st.lists(st.sampled_from([-20, -1, 0, 0.3, 0.9, 1.2, 3, 20]), min_size=1, max_size=6),
    outlier=st.sampled_from([None, 1e3, -1e15]),
    cut=st.integers(0, 60),
)
def test_scales_decide_the_normalization(seed, rows, exponents, outlier, cut):
    rng = np.random.default_rng(seed)
    X = 10.0 ** np.array(exponents) * rng.standard_normal((rows, len(exponents)))
    if outlier:
        X[rng.integers(rows), 0] = outlier
    assert automatic(X, [cut]) == oracles.automatic_normalization(X)


def test_scales_that_differ_by_more_than_ten_are_normalized():
    X = np.random.default_rng(0).standard_normal((500, 5))
    assert automatic(X) is None
    assert automatic(X * [1, 1, 1, 1, 8]) is None
    assert automatic(X * [1, 1, 1, 1, 13]) == "feature"
    assert automatic(X * [1, 1, 1, 1, 0.001]) is None, "a small feature is lost anyway"
    assert automatic(1e-20 * X) is None
    assert automatic(1e20 * X * [1, 1, 1, 1, 13]) == "feature"


def test_constant_features_do_not_count():
    X = np.random.default_rng(0).standard_normal((500, 5))
    X[:, :4] = 7
    assert automatic(X) is None
    assert automatic(np.full((500, 5), 3.0)) is None
    X[:, 4] *= 1e6
    assert automatic(X) is None
    X[:, 3] = X[:, 4] / 1e6
    assert automatic(X) is None, "the median of two lies between them"
    X[:, 2] = X[:, 3]
    assert automatic(X) == "feature"


@pytest.mark.parametrize("outlier", [100, 1e6, -1e15, 1e100])
@pytest.mark.parametrize("n_outliers", [1, 3])
def test_a_few_outliers_do_not_decide_the_normalization(outlier, n_outliers):
    X = np.random.default_rng(0).standard_normal((500, 5))
    X[:n_outliers, 2] = outlier
    assert automatic(X) is None
    X[:, 1] *= 100
    assert automatic(X) == "feature"


def test_a_feature_of_rare_large_values_is_normalized():
    """Nine of ten values are equal, so their quartiles tell nothing, and the deviation counts."""
    X = np.random.default_rng(0).standard_normal((500, 5))
    X[:, 3] = 0
    X[::10, 3] = 1e5
    assert automatic(X) == "feature"


@given(
    seed=st.integers(0, 999),
    n_probes=st.integers(1, 40),
    dtype=st.sampled_from([np.uint8, np.int64, np.float32, np.float64]),
)
def test_quartiles_have_the_bits_of_numpy(seed, n_probes, dtype):
    probes = (np.random.default_rng(seed).standard_cauchy((n_probes, 5)) * 50).clip(-1e6, 1e6).astype(dtype)
    want = np.quantile(probes.astype(np.float64), (0.25, 0.5, 0.75), axis=0)
    assert np.array_equal(origin_quartiles(probes, None), want)


def test_any_largest_value_is_compared_without_a_warning():
    """A damaged header may hold a value that float32 cannot."""
    shift = np.ones(2, np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Preprocessing(None, shift, None, 1e308).is_small_shift
        assert not Preprocessing(None, shift, None, 0.5).is_small_shift
