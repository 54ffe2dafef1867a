"""Tables on worker processes: read, labelled and scored there, also if a worker is killed meanwhile."""

import os

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from small import chunk_files

import fxdask
from fxdask import FisherNetworkClassifier
from fxdask.errors import InvalidInputError
from fxdask.planning import score_plan
from fxdask.sizes import tile_shape

from .chaos import one_worker_killed

N, NAMES = 8_000, [f"f{i}" for i in range(6)]
X = np.random.default_rng(0).standard_normal((N, 6)).astype(np.float32)
Y = np.arange(N) % 2
X[Y == 1] *= 1.5
TABLE = pd.DataFrame(X, columns=NAMES).assign(id=np.arange(N)[::-1], y=Y)
ROWS_PER_TASK = tile_shape(6).samples
PARAMETERS = {"n_nodes": 60, "n_selected": 3, "nodes_per_block": 30}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("tables")
    # Files of different lengths, so that the ranges of rows cross them.
    (made / "all.parquet").mkdir()
    for start, stop in ((0, 1_000), (1_000, 3_500), (3_500, 3_900), (3_900, N)):
        TABLE[start:stop].to_parquet(made / "all.parquet" / f"{start}.parquet")
    TABLE[:600].to_parquet(made / "train.parquet", row_group_size=170)
    return made


@pytest.fixture(scope="module")
def model(folder):
    return FisherNetworkClassifier(**PARAMETERS, store=folder / "model.zarr").fit(X[:600], Y[:600])


def test_workers_read_and_label_tables(client, folder, model, tmp_path):
    train = fxdask.table(folder / "train.parquet", NAMES)
    made = FisherNetworkClassifier(**PARAMETERS, store=tmp_path / "model.zarr").fit(train, "y")
    ran_here = f":{os.getpid()}"
    assert not any(process.endswith(ran_here) for process in made.fit_info_["blocks_by_process"])
    own = {name: content for name, content in chunk_files(tmp_path / "model.zarr").items() if "manifest" not in name}
    assert own.items() <= chunk_files(folder / "model.zarr").items()
    frame = dd.read_parquet(folder / "train.parquet")
    other = FisherNetworkClassifier(**PARAMETERS).fit(frame[NAMES], frame["y"])
    assert np.array_equal(other.divergences_, model.divergences_)
    labelled = frame.assign(label=made.predict(frame[NAMES])).compute()
    assert np.array_equal(labelled["label"], model.predict(X[:600]))
    bad = frame.assign(f3=frame["f3"].where(frame["id"] != N - 11))
    with pytest.raises(InvalidInputError, match="contains NaN, first in sample 10, column 'f3'"):
        FisherNetworkClassifier(**PARAMETERS, store=tmp_path / "bad.zarr").fit(bad[NAMES], frame["y"])


def test_a_killed_worker_loses_no_rows_of_a_scoring_and_doubles_none(folder, model, tmp_path, monkeypatch):
    monkeypatch.setattr(score_plan, "BYTES_PER_TASK", 1)
    out = tmp_path / "scored.parquet"
    with one_worker_killed(
        tmp_path / "cluster", lambda: len(list(tmp_path.glob(".scored.parquet.next-*/scores-*.parquet"))) >= 2
    ):
        result = fxdask.batch_score(model.store_, folder / "all.parquet", out, "y", id_columns=["id"], density="exact")
    assert result.n_samples == N
    assert len(list(out.glob("scores-*.parquet"))) == -(-N // ROWS_PER_TASK)
    scored = pd.read_parquet(out)
    assert np.array_equal(scored["id"], TABLE["id"])
    assert np.array_equal(scored["label"], model.predict(X))
    assert result.accuracy == np.mean(scored["label"] == Y)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cluster", "scored.parquet"]
