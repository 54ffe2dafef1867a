"""Damage to any file of a store is detected and the file is named; it never gives a wrong number."""

import json
import shutil
from itertools import cycle, product
from pathlib import Path

import numpy as np
import pytest
import zarr
from command_line import run_here
from processes import run_python

import fxdask
from fxdask import FisherNetworkClassifier
from fxdask.errors import FxdaskError, StoreFormatError, StoreUnfinishedError
from fxdask.store import arrays
from fxdask.store.verify import verify_store

RNG = np.random.default_rng(0)
X = RNG.standard_normal((80, 6)).astype(np.float32)
X[::2] *= 2
Y = np.arange(80) % 2


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    store = tmp_path_factory.mktemp("whole") / "model.zarr"
    clf = FisherNetworkClassifier(
        120, 3, store=store, nodes_per_block=40, keep_projections="all", keep_weights=True, normalize="feature"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "BYTES_PER_CHUNK", 1)  # one chunk for each selected node
        return clf.fit(X, Y)


@pytest.fixture
def copied(model, tmp_path):
    return shutil.copytree(model.store_, tmp_path / "model.zarr")


def files_of(store):
    return sorted(path for path in store.rglob("*") if path.is_file())


def results_of(store):
    """Everything that is computed from a stored model: scores, responses, weights, parameters."""
    loaded = fxdask.load(store)
    return [
        loaded.predict_log_proba(X),
        loaded.responses(X[:2]),
        loaded.divergences_,
        loaded.selected_nodes_,
        loaded.weights([0, 119]),
        loaded.priors_,
        np.array([repr(sorted(loaded.get_params().items(), key=str)).replace(str(store), "")]),
    ]


def damaged_file(store):
    """The name of the only damaged file; "the whole store" if the store cannot be opened."""
    try:
        (description,) = verify_store(store).damaged
    except FxdaskError:
        return "the whole store"
    return description.partition(" ")[0]


def test_an_intact_store_passes(model):
    result = verify_store(model.store_)
    assert result.damaged == []
    assert result.unknown == []
    assert result.n_files == len(list(files_of(Path(model.store_))))


def test_every_flipped_bit_is_detected(model, copied, pytestconfig):
    """Verifying names the file; loading refuses the store, or gives exactly the same numbers."""
    expected = results_of(Path(model.store_))
    all_files = files_of(copied)
    sizes = np.array([file.stat().st_size for file in all_files])
    rng = np.random.default_rng(1)
    refused = 0
    # One bit in every file, so that small files are included, and others chosen by byte.
    n_by_byte = 300 if pytestconfig.getoption("--full") else 4
    chosen = [*range(len(all_files)), *rng.choice(len(sizes), n_by_byte, p=sizes / sizes.sum())]
    for index in chosen:
        file = all_files[index]
        intact = file.read_bytes()
        damaged = bytearray(intact)
        damaged[rng.integers(len(damaged))] ^= 1 << rng.integers(8)
        file.write_bytes(damaged)
        name = file.relative_to(copied).as_posix()
        assert damaged_file(copied) in (name, "the whole store")
        try:
            results = results_of(copied)
        except FxdaskError:
            refused += 1
        else:
            for result, wanted in zip(results, expected, strict=True):
                assert np.array_equal(result, wanted), f"{name} was read with a flipped bit"
        file.write_bytes(intact)
    assert refused > len(chosen) // 2
    assert verify_store(copied).damaged == []


DAMAGES = [
    (lambda file: file.write_bytes(file.read_bytes()[:-3]), "bytes instead of"),
    (lambda file: file.write_bytes(b""), "has 0 bytes instead of"),
    (lambda file: file.unlink(), "is missing"),
]


def test_truncated_empty_and_missing_files_are_detected(model, copied, pytestconfig):
    """Every file is damaged in one way, and with --full in each way."""
    ways = (
        product(files_of(copied), DAMAGES)
        if pytestconfig.getoption("--full")
        else zip(files_of(copied), cycle(DAMAGES))
    )
    for file, (damage, message) in ways:
        name, intact = file.relative_to(copied).as_posix(), file.read_bytes()
        damage(file)
        if name in ("zarr.json", "manifest/files/zarr.json", "manifest/files/c/0"):
            with pytest.raises((FxdaskError, OSError)):
                verify_store(copied)
        else:
            (description,) = verify_store(copied).damaged
            assert description.startswith(f"{name} ")
            assert message in description
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_bytes(intact)
    assert verify_store(copied).damaged == []


@pytest.mark.parametrize("array", ["projections", "statistics", "weights", "selected/projections"])
def test_swapped_chunks_are_detected(model, copied, array):
    first, second = sorted(file for file in files_of(copied / array) if file.name != "zarr.json")[:2]
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)
    assert len(verify_store(copied).damaged) == 2
    if array == "weights":
        return  # fxdask draws weights again and does not read this array
    with pytest.raises(StoreFormatError, match=rf"damaged: {array}/c/.* was changed: its checksum differs"):
        results_of(copied)


def test_changed_metadata_are_detected(copied):
    """With another byte order in the metadata, Zarr alone would read wrong numbers."""
    file = copied / "selected" / "weights" / "zarr.json"
    text = file.read_text()
    file.write_text(text.replace('"little"', '"big"'))
    assert file.read_text() != text
    with pytest.raises(StoreFormatError, match=r"damaged: selected/weights/zarr.json "):
        fxdask.load(copied)


def test_a_store_without_its_manifest_is_unfinished(model, copied):
    shutil.rmtree(copied / "manifest")
    with pytest.raises(StoreUnfinishedError, match="is unfinished; run the same call again"):
        fxdask.load(copied)
    again = FisherNetworkClassifier(**{**model.get_params(), "store": copied}).fit(X, Y)
    assert again.fit_info_["n_blocks_resumed"] == 3
    assert verify_store(copied).damaged == []


def test_resuming_computes_damaged_blocks_again(model, copied):
    shutil.rmtree(copied / "manifest")
    chunks = sorted((copied / "statistics" / "c").rglob("*"))
    chunks = [file for file in chunks if file.is_file()]
    chunks[0].write_bytes(chunks[0].read_bytes()[:-10])
    flipped = bytearray(chunks[1].read_bytes())
    flipped[5] ^= 1
    chunks[1].write_bytes(flipped)
    again = FisherNetworkClassifier(**{**model.get_params(), "store": copied}).fit(X, Y)
    assert again.fit_info_["n_blocks_resumed"] == 1
    for result, expected in zip(results_of(copied), results_of(Path(model.store_)), strict=True):
        assert np.array_equal(result, expected)


def test_scores_have_a_manifest(model, tmp_path):
    np.save(tmp_path / "X.npy", X)
    fxdask.batch_score(model.store_, tmp_path / "X.npy", tmp_path / "scored.zarr")
    assert verify_store(tmp_path / "scored.zarr").damaged == []
    scores = zarr.open_group(tmp_path / "scored.zarr")["scores"]
    scores[0] = 0
    assert verify_store(tmp_path / "scored.zarr").damaged == ["scores/c/0/0 was changed: its checksum differs"]


def test_the_command_line_reports_damage(copied):
    intact = run_here(copied, "verify", copied, "--json")
    assert intact.returncode == 0, intact.stderr
    assert json.loads(intact.stdout)["damaged"] == []
    (copied / "left.partial").write_text("over")
    (copied / "priors" / "c" / "0").unlink()
    # In a separate process, because scripts use its exit status.
    status, out, errors = run_python("-m", "fxdask", "verify", copied, "--json")
    assert status == 1
    assert json.loads(out)["damaged"] == ["priors/c/0 is missing"]
    assert json.loads(out)["not_in_the_manifest"] == ["left.partial"]
    assert errors.startswith("error: ")
    assert len(errors.splitlines()) == 1
