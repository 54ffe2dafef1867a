import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import hadamard

from fxdask.kernels import hadamard as transforms
from fxdask.kernels.hadamard import transform_three_times
from fxdask.kernels.structured import StructuredNodes, structured_rows
from fxdask.sizes import structured_tile, transform_length
from tests.oracles import structured_weights


def projected(samples, nodes, seed=0):
    samples = np.ascontiguousarray(samples, np.float32)
    nodes_of = StructuredNodes(seed, nodes, samples.shape[1])
    values = np.empty((nodes_of.n_rows, len(samples)), np.float32)
    for rows, columns, part in nodes_of.parts(samples):
        values[rows, columns] = part
    return values


@pytest.mark.parametrize("n_features", [16, 256, 300, 784])
def test_rows_are_those_of_the_whole_matrices(n_features):
    wanted = [structured_weights(7, block, n_features) for block in (0, 1)]
    rows = structured_rows(7, np.arange(2 * len(wanted[0])), n_features)
    # Up to 4,096 nodes a block every weight is a whole number of steps that float32 represents.
    assert np.array_equal(rows, np.concatenate(wanted).astype(np.float32))


@pytest.mark.parametrize(("n_features", "n_samples"), [(16, 5), (300, 70), (1024, 130)])
def test_values_are_products_with_the_rows(n_features, n_samples):
    samples = np.random.default_rng(1).standard_normal((n_samples, n_features)).astype(np.float32)
    nodes = np.arange(40, transform_length(n_features) + 60)
    exact = structured_rows(3, nodes, n_features).astype(float) @ samples.T.astype(float)
    scale = np.sqrt(n_features) * np.linalg.norm(samples, axis=1)
    assert (np.abs(projected(samples, nodes, 3) - exact) <= 2.0**-23 * scale).all()


@given(
    n_rows=st.sampled_from([32, 64, 128, 512]),
    width=st.integers(1, 40),
    per_chunk=st.sampled_from([16, 64, 2**10, 2**17]),
    seed=st.integers(0, 99),
)
@settings(max_examples=40)
def test_a_transform_has_the_same_bits_for_every_split(n_rows, width, per_chunk, seed):
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n_rows, width)).astype(np.float32)
    first, second = rng.choice([-0.25, 0.25], (2, n_rows)).astype(np.float32)
    H = hadamard(n_rows).astype(float)
    exact = H @ (second[:, None] * (H @ (first[:, None] * (H @ rows.astype(float)))))
    found = rows.copy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transforms, "FLOATS_PER_CHUNK", per_chunk)
        transform_three_times(found, first, second)
    np.testing.assert_allclose(found, exact, atol=2e-6 * np.abs(exact).max())
    alone = np.ascontiguousarray(rows[:, -1:])
    transform_three_times(alone, first, second)
    assert np.array_equal(found[:, -1:], alone)


@given(
    n_samples=st.integers(1, 150),
    nodes=st.sets(st.integers(0, 600), min_size=1, max_size=300),
    cut=st.integers(0, 150),
)
@settings(max_examples=25)
def test_a_value_depends_on_seed_node_and_sample_alone(n_samples, nodes, cut):
    samples = np.random.default_rng(0).standard_normal((n_samples, 20)).astype(np.float32)
    everything = projected(samples, np.arange(601))
    some = sorted(nodes)
    parts = [projected(part, some) for part in (samples[:cut], samples[cut:]) if len(part)]
    assert np.array_equal(np.concatenate(parts, axis=1), everything[some])
    order = list(nodes)[::-1]
    assert np.array_equal(structured_rows(0, order, 20), structured_rows(0, np.arange(601), 20)[order])


def test_weights_have_mean_zero_and_variance_one_and_differ_by_seed_and_block():
    of_seed = [structured_rows(seed, np.arange(2048), 700) for seed in (0, 1)]
    for weights in (*of_seed, of_seed[0][:1024], of_seed[0][1024:]):
        assert abs(weights.mean()) < 5 / np.sqrt(weights.size)
        assert abs(weights.var() - 1) < 0.02
        np.testing.assert_allclose(np.linalg.norm(weights, axis=1), np.sqrt(700), rtol=0.15)
    for first, second in (of_seed, (of_seed[0][:1024], of_seed[0][1024:])):
        correlations = np.sum(first * second, axis=1) / 700
        assert np.abs(correlations).max() < 6 / np.sqrt(700)


def test_large_values_overflow_no_sooner_than_their_products():
    samples = np.full((1, 300), 1e35, np.float32)
    assert np.isfinite(projected(samples, np.arange(512))).all()


@pytest.mark.parametrize("n_features", [16, 784, 4097, 20_000, 10**6])
def test_tiles_of_wide_samples_are_small(n_features):
    tile = structured_tile(n_features)
    assert tile.nodes == transform_length(n_features)
    assert tile.samples % 16 == 0
    assert tile.samples == 16 or 4 * tile.samples * n_features <= 16 * 2**20
