import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fxdask.kernels.preprocessing import origin_quartiles, preprocessing_from, summarize
from fxdask.kernels.projection import (
    ColumnValues,
    DenseNodes,
    PackedProjection,
    class_runs,
    node_rows,
    row_products,
)
from fxdask.kernels.scratch import Scratch
from fxdask.sizes import TileShape, padded_length

TILE = TileShape(16, 32)


def project(W, X, codes, n_classes, n_nodes, first_node=0, tile=TILE):
    """(node, sample) products of a range of nodes with all samples, ordered by class."""
    nodes = DenseNodes(W, first_node, n_nodes, tile.nodes, Scratch())
    values, runs = [], [[] for _ in range(n_classes)]
    for start in range(0, len(X), tile.samples):
        rows = X[start : start + tile.samples]
        order, of_tile = class_runs(codes[start : start + tile.samples], n_classes)
        padded = np.zeros((padded_length(len(rows)), X.shape[1]), np.float32)
        padded[: len(rows)] = rows[order]
        product = np.empty((nodes.n_rows, len(padded)), np.float32)
        for part_rows, columns, part in nodes.parts(padded):
            product[part_rows, columns] = part
        values.append(product)
        for of_class, run in zip(runs, of_tile, strict=True):
            of_class.append(slice(start + run.start, start + run.stop))
    projected = ColumnValues(np.concatenate(values, axis=1)[nodes.nodes], runs)
    return np.concatenate([projected.gather(k) for k in range(n_classes)], axis=1)


@given(
    seed=st.integers(0, 999),
    nodes=st.integers(1, 50),
    samples=st.integers(1, 100),
    n_features=st.integers(1, 40),
    n_classes=st.integers(2, 4),
    block=st.integers(1, 50),
)
def test_values_are_products_ordered_by_class_for_every_block_size(seed, nodes, samples, n_features, n_classes, block):
    rng = np.random.default_rng(seed)
    W = rng.standard_normal((nodes, n_features)).astype(np.float32)
    X = rng.standard_normal((samples, n_features)).astype(np.float32)
    codes = rng.integers(0, n_classes, samples)
    whole = project(W, X, codes, n_classes, nodes)
    exact = (W.astype(float) @ X.T.astype(float))[:, np.argsort(codes, kind="stable")]
    np.testing.assert_allclose(whole, exact, atol=1e-5 * n_features)
    pieces = [project(W[a : a + block], X, codes, n_classes, nodes, a) for a in range(0, nodes, block)]
    assert np.array_equal(np.concatenate(pieces), whole)


@given(n_nodes=st.integers(1, 200), data=st.data())
def test_a_range_of_nodes_uses_the_tiles_of_all_nodes(n_nodes, data):
    start = data.draw(st.integers(0, n_nodes - 1))
    stop = data.draw(st.integers(start + 1, n_nodes))
    first, last, tiles = node_rows(start, stop, n_nodes, TILE.nodes)
    assert first <= start
    assert stop <= last
    _, _, all_tiles = node_rows(0, n_nodes, n_nodes, TILE.nodes)
    absolute = [slice(tile.start + first, tile.stop + first) for tile in tiles]
    assert all(tile in all_tiles for tile in absolute)


@given(
    seed=st.integers(0, 999),
    nodes=st.integers(1, 40),
    samples=st.integers(1, 100),
    cut=st.integers(0, 100),
    shift_products=st.booleans(),
)
def test_packed_products_do_not_depend_on_how_samples_are_split(seed, nodes, samples, cut, shift_products):
    rng = np.random.default_rng(seed)
    W = rng.standard_normal((nodes, 20)).astype(np.float32)
    X = rng.standard_normal((samples, 20)).astype(np.float32)
    before = preprocessing_from(summarize(X, None), origin_quartiles(X, None), None, X.dtype)
    tile = TileShape(padded_length(nodes), TILE.samples)
    project = PackedProjection(W, before, tile, shift_products=shift_products)
    whole = project(X, 0, Scratch())
    assert whole.shape == (nodes, samples)
    np.testing.assert_allclose(whole, W.astype(float) @ (X - before.shift).T.astype(float), atol=1e-4)
    parts = [project(X[:cut], 0, Scratch()), project(X[cut:], min(cut, samples), Scratch())]
    assert np.array_equal(np.concatenate(parts, axis=1), whole)


@given(seed=st.integers(0, 2**32), rows=st.integers(1, 300), cut=st.integers(0, 300))
def test_products_of_rows_do_not_depend_on_the_rows_beside_them(seed, rows, cut):
    rng = np.random.default_rng(seed)
    values, matrix = rng.standard_normal((rows, 12)), rng.standard_normal((12, 49))
    whole = row_products(values, matrix)
    assert np.allclose(whole, values @ matrix, rtol=1e-12, atol=1e-12)
    parts = [row_products(part, matrix) for part in (values[:cut], values[cut:])]
    assert np.concatenate(parts).tobytes() == whole.tobytes()
