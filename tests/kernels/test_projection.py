import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fxdask.kernels.projection import ClassOrder, pad_rows, project_packed, project_tile, weight_tiles
from fxdask.plan import TileShape

TILE = TileShape(16, 32)


def project(W, X, codes, n_classes, first_node=0, tile=TILE):
    order = ClassOrder(codes, n_classes)
    values = np.full((len(W), len(X)), np.nan, np.float32)
    scratch = np.empty((tile.nodes, tile.samples), np.float32)
    tiles = weight_tiles(W, first_node, tile.nodes)
    for start in range(0, len(X), tile.samples):
        rows = X[start : start + tile.samples]
        within, runs = order.runs(start, start + len(rows))
        project_tile(values, tiles, pad_rows(rows[within], tile.samples), runs, scratch)
    return values


@given(
    seed=st.integers(0, 999),
    nodes=st.integers(1, 50),
    samples=st.integers(1, 100),
    inputs=st.integers(1, 40),
    n_classes=st.integers(2, 4),
    block=st.integers(1, 50),
)
def test_values_are_products_sorted_by_class_whatever_the_block(seed, nodes, samples, inputs, n_classes, block):
    rng = np.random.default_rng(seed)
    W = rng.standard_normal((nodes, inputs)).astype(np.float32)
    X = rng.standard_normal((samples, inputs)).astype(np.float32)
    codes = rng.integers(0, n_classes, samples)
    whole = project(W, X, codes, n_classes)
    exact = (W.astype(float) @ X.T.astype(float))[:, np.argsort(codes, kind="stable")]
    np.testing.assert_allclose(whole, exact, atol=1e-5 * inputs)
    pieces = [project(W[a : a + block], X, codes, n_classes, a) for a in range(0, nodes, block)]
    assert np.array_equal(np.concatenate(pieces), whole)


@given(seed=st.integers(0, 999), nodes=st.integers(1, 40), samples=st.integers(0, 100), tiles=st.integers(0, 3))
def test_packed_products_do_not_depend_on_how_many_samples_there_are(seed, nodes, samples, tiles):
    rng = np.random.default_rng(seed)
    W = rng.standard_normal((nodes, 20)).astype(np.float32)
    X = rng.standard_normal((samples, 20)).astype(np.float32)
    whole = project_packed(W, X, TILE)
    assert whole.shape == (nodes, samples)
    np.testing.assert_allclose(whole, W.astype(float) @ X.T.astype(float), atol=1e-4)
    cut = tiles * TILE.samples
    parts = [project_packed(W, part, TILE) for part in (X[:cut], X[cut:])]
    assert np.array_equal(np.concatenate(parts, axis=1), whole)
