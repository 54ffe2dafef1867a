"""The values of a block of columns, compared with plain NumPy."""

import numpy as np
import oracles
from hypothesis import given
from hypothesis import strategies as st

from fxdask.kernels.brackets import probe_indices
from fxdask.kernels.preprocessing import origin_quartiles, preprocessing_from, summarize
from fxdask.kernels.weights import weight_block
from fxdask.planning.fit_plan import FitPlan
from fxdask.store.sources import NpyAddress
from fxdask.tasks.columns import ProjectedNodes
from fxdask.tasks.job import FitJob
from fxdask.tasks.telemetry import TaskCounters

SEED = 4
N_FEATURES = 50
SHAPES = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 999),
        "n_samples": st.integers(12, 2_000),
        "n_classes": st.integers(2, 4),
        "normalize": st.sampled_from([None, "sample", "feature"]),
        "index": st.integers(0, 2),
    }
)


class Example:
    """A job, its samples and, in float64, what its columns should hold."""

    def __init__(self, *, seed, n_samples, n_classes, normalize, index, samples_per_chunk=0, dtype=np.float32):
        rng = np.random.default_rng(seed)
        self.X = (5 * rng.standard_normal((n_samples, N_FEATURES)) + 3).astype(dtype)
        assigned = np.repeat(np.arange(n_classes), 2)
        self.codes = np.concatenate([assigned, rng.integers(0, n_classes, n_samples - len(assigned))])
        self.preprocessing = preprocessing_from(
            summarize(self.X, normalize), origin_quartiles(self.X, normalize), normalize, self.X.dtype
        )
        counts = tuple(map(int, np.bincount(self.codes)))
        plan = FitPlan(
            n_nodes=N_FEATURES,
            n_features=N_FEATURES,
            class_counts=counts,
            n_selected=1,
            nodes_per_block=20,
            samples_per_chunk=samples_per_chunk,
        )
        self.probed = probe_indices(self.codes, [max(1, count // 3) for count in counts])
        self.job = FitJob(
            plan=plan,
            seed=SEED,
            preprocessing=self.preprocessing,
            codes=self.codes,
            priors=np.full(n_classes, 1 / n_classes),
            class_norms=2.0 ** np.arange(n_classes),
            criterion="fisher",
            location="mean",
            spread="std",
            shrink_spread=False,
            probe_codes=self.codes[self.probed],
        )
        self.block = plan.block(index)
        self.n_classes, self.normalize = n_classes, normalize

    def columns(self, samples=None):
        self.counters = TaskCounters()
        return ProjectedNodes(
            self.job, self.X if samples is None else samples, self.block, self.counters, self.X[self.probed]
        )

    def preprocessed(self):
        """(sample, feature) by plain NumPy in float64."""
        rows = self.X.astype(np.float64)
        if self.normalize == "sample":
            rows = (rows - rows.mean(axis=1, keepdims=True)) / rows.std(axis=1, keepdims=True)
        rows = rows - oracles.origin(rows)
        return rows / self.X.std(axis=0, dtype=np.float64) if self.normalize == "feature" else rows

    def weights(self):
        """(column, feature) by which the preprocessed samples are multiplied."""
        rows = slice(self.block.start, self.block.stop)
        return weight_block(SEED, 0, N_FEATURES, N_FEATURES)[rows].astype(np.float64)

    def expected(self, k, rows=slice(None)):
        """(column, sample) values of one class."""
        return (self.weights() @ self.preprocessed().T)[:, self.codes == k][rows]


@given(shape=SHAPES, dtype=st.sampled_from([np.float32, np.float64]))
def test_values_of_each_class_equal_those_of_numpy(shape, dtype):
    example = Example(**shape, dtype=dtype)
    columns = example.columns()
    values = columns.all_values()
    assert columns.n_columns == example.block.n_nodes == values.n_nodes
    for k in range(example.n_classes):
        assert values.count(k) == (example.codes == k).sum()
        np.testing.assert_allclose(values.gather(k), example.expected(k), atol=2e-4)


@given(shape=SHAPES)
def test_class_runs_are_disjoint_and_cover_all_samples(shape):
    example = Example(**shape)
    (values,) = example.columns().chunks(np.arange(example.block.n_nodes))
    positions = [position for runs in values.runs for run in runs for position in range(run.start, run.stop)]
    assert len(set(positions)) == len(positions) == len(example.X)
    padding = np.setdiff1d(np.arange(values.values.shape[1]), positions)
    assert len(padding) < 16
    assert not values.values[:, padding].any(), "padding is zero"


@given(
    shape=SHAPES,
    tiles_per_chunk=st.integers(1, 3),
    rows=st.sets(st.integers(0, 9), min_size=1).map(lambda chosen: np.array(sorted(chosen))),
)
def test_chunks_have_the_same_bits_as_all_values(shape, tiles_per_chunk, rows):
    example = Example(**shape, samples_per_chunk=768 * tiles_per_chunk)
    columns = example.columns()
    whole = columns.all_values()
    want = [whole.gather(k)[rows] for k in range(example.n_classes)]
    parts = [[] for _ in want]
    for chunk in columns.chunks(rows):
        for k, of_class in enumerate(parts):
            of_class.append(chunk.gather(k))
    assert len(parts[0]) == -(-len(example.X) // (768 * tiles_per_chunk))
    for of_class, expected in zip(parts, want, strict=True):
        assert np.concatenate(of_class, axis=1).tobytes() == expected.tobytes()
    assert example.counters.passes == 2


@given(shape=SHAPES, rows=st.sets(st.integers(0, 9), min_size=1).map(lambda chosen: np.array(sorted(chosen))))
def test_probed_values_are_those_of_the_probed_samples(shape, rows):
    example = Example(**shape)
    found = example.columns().probed(rows)
    for k in range(example.n_classes):
        is_probed = np.isin(np.flatnonzero(example.codes == k), example.probed)
        np.testing.assert_allclose(found.gather(k), example.expected(k, rows)[:, is_probed], atol=2e-4)


@given(shape=SHAPES)
def test_no_value_exceeds_its_bound(shape):
    example = Example(**shape)
    columns = example.columns()
    rows = np.arange(columns.n_columns)
    bounds = columns.bounds(rows)
    largest_values = [np.abs(values).max(axis=1, initial=0) for values in columns.all_values().arrays]
    assert (np.max(largest_values, axis=0) <= bounds).all()
    largest = np.abs(example.preprocessed()).max()
    np.testing.assert_allclose(bounds, 1.01 * largest * np.abs(example.weights()).sum(axis=1), rtol=1e-4)
    assert np.array_equal(columns.bounds(rows[::3]), bounds[::3])


@given(shape=SHAPES)
def test_the_tolerance_of_a_node_is_the_rounding_of_its_products(shape):
    example = Example(**shape)
    norms = np.linalg.norm(example.weights(), axis=1)
    expected = 8 * float(np.finfo(np.float32).eps) * norms * 2.0 ** np.arange(example.n_classes)[:, None]
    np.testing.assert_allclose(example.columns().tolerance, expected, rtol=1e-12)


def test_a_constant_class_has_a_spread_within_the_tolerance():
    example = Example(seed=0, n_samples=400, n_classes=2, normalize=None, index=0)
    example.X[example.codes == 1] = example.X[0]
    columns = example.columns()
    constant = columns.all_values().gather(1)
    assert (constant.std(axis=1, dtype=np.float64) <= columns.tolerance[1]).all()
    assert (columns.all_values().gather(0).std(axis=1, dtype=np.float64) > columns.tolerance[0]).all()


def test_a_file_gives_the_same_bits_as_an_array_and_counts_its_bytes(tmp_path):
    shape = {"seed": 1, "n_samples": 900, "n_classes": 3, "normalize": None, "index": 1}
    example = Example(**shape)
    np.save(tmp_path / "X.npy", example.X)
    in_memory = [values.tobytes() for values in example.columns().all_values().arrays]
    assert example.counters.bytes_read == 0
    from_file = example.columns(NpyAddress(str(tmp_path / "X.npy"))).all_values()
    assert [values.tobytes() for values in from_file.arrays] == in_memory
    assert example.counters.bytes_read == example.X.nbytes
