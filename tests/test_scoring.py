import dask.array as da
import numpy as np
import pytest
import zarr

import fxdask
from fxdask import FisherNetworkClassifier
from fxdask.plan import rows_per_read


@pytest.fixture
def model(three_blobs, tmp_path):
    return FisherNetworkClassifier(100, 3, store=tmp_path / "model.zarr").fit(*three_blobs)


def test_store_to_store(model, three_blobs, tmp_path):
    X, y = three_blobs
    zarr.create_array(tmp_path / "test.zarr", data=X, chunks=(37, 2))
    result = fxdask.batch_score(tmp_path / "model.zarr", tmp_path / "test.zarr", tmp_path / "scored.zarr", y)
    scored = zarr.open_group(tmp_path / "scored.zarr", mode="r")
    assert scored["labels"][:].tolist() == model.predict(X).tolist()
    scores = scored["scores"][:]
    assert np.array_equal(scores - np.logaddexp.reduce(scores, axis=1)[:, None], model.predict_log_proba(X))
    assert result.n_samples == 300
    assert result.accuracy == model.score(X, y)
    assert result.samples_per_second > 0
    header = scored.attrs["fxdask"]
    assert header["finished"]
    assert header["classes"] == ["ash", "birch", "cedar"]
    assert header["accuracy"] == result.accuracy


@pytest.mark.parametrize("kind", ["numpy", "dask", "npy", "zarr"])
def test_more_than_one_read(kind, tmp_path):
    """Samples so wide that the reads, so the chunks of the result, are several."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 200, (4_000, 2_000), dtype=np.uint8)
    X[::2, :500] //= 2
    y = np.arange(4_000) % 2
    model = FisherNetworkClassifier(200, 3).fit(X[:200], y[:200])
    np.save(tmp_path / "X.npy", X)
    data = {
        "numpy": X,
        "dask": da.from_array(X, chunks=(999, 700)),
        "npy": tmp_path / "X.npy",
        "zarr": zarr.create_array(tmp_path / "X.zarr", data=X, chunks=(700, 700)),
    }[kind]
    result = fxdask.batch_score(model, data, tmp_path / "out.zarr", y)
    scored = zarr.open_group(tmp_path / "out.zarr", mode="r")
    # Whole chunks of what has chunks, whole reads of what has none.
    rows = {"dask": 999, "zarr": 1_400}.get(kind, rows_per_read(2_000))
    assert scored["labels"].chunks == scored["scores"].chunks[:1] == (rows,)
    assert scored["labels"].nchunks_initialized == -(-4_000 // rows)
    assert np.array_equal(scored["labels"][:], model.predict(X))
    assert result.accuracy == model.score(X, y)


def test_an_empty_test_set(model, tmp_path):
    for data in (np.empty((0, 5)), da.zeros((0, 5))):
        result = fxdask.batch_score(model, data, tmp_path / "empty.zarr", [], overwrite=True)
        assert result.n_samples == 0
        assert result.accuracy is None
        group = zarr.open_group(tmp_path / "empty.zarr", mode="r")
        assert group["labels"].shape == (0,)
        assert group["scores"].shape == (0, 3)
        assert group.attrs["fxdask"]["finished"]


def test_labels_of_another_length(model, three_blobs, tmp_path):
    with pytest.raises(ValueError, match="y has 3 labels but X has 300 samples"):
        fxdask.batch_score(model, three_blobs[0], tmp_path / "out.zarr", ["ash"] * 3)
    assert not (tmp_path / "out.zarr").exists()


def test_unfinished_scores_are_replaced(model, three_blobs, tmp_path):
    X, _ = three_blobs
    fxdask.batch_score(model, X, tmp_path / "out.zarr")
    group = zarr.open_group(tmp_path / "out.zarr")
    group.attrs["fxdask"] = {**group.attrs["fxdask"], "finished": False}
    fxdask.batch_score(model, X[:10], tmp_path / "out.zarr")
    assert zarr.open_group(tmp_path / "out.zarr")["labels"].shape == (10,)
