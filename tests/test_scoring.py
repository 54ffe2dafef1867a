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
    """Enough narrow samples that the reads, so the chunks of the result, are several."""
    rng = np.random.default_rng(0)
    train = rng.standard_normal((60, 1))
    model = FisherNetworkClassifier(20, 1).fit(train, np.arange(60) % 2)
    n = 2 * rows_per_read(1) // 10**2 + 17
    X = rng.standard_normal((n, 1))
    wide = np.broadcast_to(X, (n, 1))
    np.save(tmp_path / "X.npy", X)
    data = {
        "numpy": wide,
        "dask": da.from_array(X, chunks=(50_001, 1)),
        "npy": tmp_path / "X.npy",
        "zarr": zarr.create_array(tmp_path / "X.zarr", data=X, chunks=(30_000, 1)),
    }[kind]
    fxdask.batch_score(model, data, tmp_path / "out.zarr")
    assert np.array_equal(zarr.open_group(tmp_path / "out.zarr")["labels"][:], model.predict(X))


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
