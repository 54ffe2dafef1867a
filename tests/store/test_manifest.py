"""Damage of any kind to any file of a store: noticed and named, never a wrong number."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr

import fxdask
from fxdask import FisherNetworkClassifier
from fxdask.errors import FxdaskError, StoreFormatError, StoreUnfinishedError
from fxdask.store.verify import verify_store

N_FLIPS = 300
RNG = np.random.default_rng(0)
X = RNG.standard_normal((80, 6)).astype(np.float32)
X[::2] *= 2
Y = np.arange(80) % 2


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    store = tmp_path_factory.mktemp("whole") / "model.zarr"
    return FisherNetworkClassifier(
        120, 3, store=store, nodes_per_block=40, keep_projections="all", keep_weights=True, normalize="feature"
    ).fit(X, Y)


@pytest.fixture
def copied(model, tmp_path):
    return shutil.copytree(model.store_, tmp_path / "model.zarr")


def files_of(store):
    return sorted(path for path in store.rglob("*") if path.is_file())


def used(store):
    """Everything that is made of a stored model: what it says of itself, labels, scores, responses."""
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


def noticed(store):
    """The one file that a look at every file finds damaged; the whole store, if it cannot even be opened."""
    try:
        (found,) = verify_store(store).damaged
    except FxdaskError:
        return "the whole store"
    return found.partition(" ")[0]


def test_a_whole_store_passes(model):
    found = verify_store(model.store_)
    assert found.damaged == []
    assert found.unknown == []
    assert found.n_files == len(list(files_of(Path(model.store_))))


def test_no_flipped_bit_passes_unnoticed(model, copied):
    """One bit anywhere: verifying names the file, and loading refuses, or gives the very same numbers."""
    want = used(Path(model.store_))
    everything = files_of(copied)
    sizes = np.array([file.stat().st_size for file in everything])
    rng = np.random.default_rng(1)
    refused = 0
    # Half of them by file, so that small ones get their share, half by byte.
    by_file = rng.integers(len(everything), size=N_FLIPS // 2)
    chosen = [*by_file, *rng.choice(len(sizes), N_FLIPS // 2, p=sizes / sizes.sum())]
    for place in chosen:
        file = everything[place]
        whole = file.read_bytes()
        damaged = bytearray(whole)
        damaged[rng.integers(len(damaged))] ^= 1 << rng.integers(8)
        file.write_bytes(damaged)
        name = file.relative_to(copied).as_posix()
        assert noticed(copied) in (name, "the whole store")
        try:
            got = used(copied)
        except FxdaskError:
            refused += 1
        else:
            for mine, theirs in zip(got, want, strict=True):
                assert np.array_equal(mine, theirs), f"{name} was read with a flipped bit"
        file.write_bytes(whole)
    assert refused > N_FLIPS // 2
    assert verify_store(copied).damaged == []


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:-3]), "bytes instead of"),
        (lambda file: file.write_bytes(b""), "has 0 bytes instead of"),
        (lambda file: file.unlink(), "is missing"),
    ],
)
def test_truncated_empty_and_missing_files(model, copied, damage, words):
    for file in files_of(copied):
        name, whole = file.relative_to(copied).as_posix(), file.read_bytes()
        damage(file)
        if name in ("zarr.json", "manifest/zarr.json", "manifest/c/0"):
            with pytest.raises((FxdaskError, OSError)):
                verify_store(copied)
        else:
            (found,) = verify_store(copied).damaged
            assert found.startswith(f"{name} ")
            assert words in found
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_bytes(whole)
    assert verify_store(copied).damaged == []


@pytest.mark.parametrize("array", ["projections", "statistics", "weights", "selected/projections"])
def test_swapped_chunks(model, copied, array):
    first, second = sorted(file for file in files_of(copied / array) if file.name != "zarr.json")[:2]
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)
    assert len(verify_store(copied).damaged) == 2
    if array == "weights":
        return  # kept for other programs: fxdask draws them again, and does not read them
    with pytest.raises(StoreFormatError, match=rf"damaged: {array}/c/.* is not what was written: its checksum differs"):
        used(copied)


def test_metadata_that_lie(copied):
    """The byte order turned round: Zarr alone would read garbage."""
    file = copied / "selected" / "weights" / "zarr.json"
    text = file.read_text()
    file.write_text(text.replace('"little"', '"big"'))
    assert file.read_text() != text
    with pytest.raises(StoreFormatError, match=r"damaged: selected/weights/zarr.json "):
        fxdask.load(copied)


def test_a_store_without_its_manifest_is_not_finished(model, copied):
    shutil.rmtree(copied / "manifest")
    with pytest.raises(StoreUnfinishedError, match="begun but never finished; run the same call again"):
        fxdask.load(copied)
    again = FisherNetworkClassifier(**{**model.get_params(), "store": copied}).fit(X, Y)
    assert again.fit_info_["n_blocks_resumed"] == 3
    assert verify_store(copied).damaged == []


def test_resuming_does_not_trust_damaged_blocks(model, copied):
    shutil.rmtree(copied / "manifest")
    chunks = sorted((copied / "statistics" / "c").rglob("*"))
    chunks = [file for file in chunks if file.is_file()]
    chunks[0].write_bytes(chunks[0].read_bytes()[:-10])
    flipped = bytearray(chunks[1].read_bytes())
    flipped[5] ^= 1
    chunks[1].write_bytes(flipped)
    again = FisherNetworkClassifier(**{**model.get_params(), "store": copied}).fit(X, Y)
    assert again.fit_info_["n_blocks_resumed"] == 1
    for mine, theirs in zip(used(copied), used(Path(model.store_)), strict=True):
        assert np.array_equal(mine, theirs)


def test_scores_have_a_manifest_too(model, tmp_path):
    np.save(tmp_path / "X.npy", X)
    fxdask.batch_score(model.store_, tmp_path / "X.npy", tmp_path / "scored.zarr")
    assert verify_store(tmp_path / "scored.zarr").damaged == []
    scores = zarr.open_group(tmp_path / "scored.zarr")["scores"]
    scores[0] = 0
    assert verify_store(tmp_path / "scored.zarr").damaged == [
        "scores/c/0/0 is not what was written: its checksum differs"
    ]


def test_from_the_command_line(copied):
    def verify(*more):
        words = [sys.executable, "-m", "fxdask", "verify", str(copied), *more]
        return subprocess.run(words, capture_output=True, text=True, check=False)

    whole = verify("--json")
    assert whole.returncode == 0, whole.stderr
    assert json.loads(whole.stdout)["damaged"] == []
    (copied / "left.partial").write_text("over")
    (copied / "priors" / "c" / "0").unlink()
    found = verify("--json")
    assert found.returncode == 1
    assert json.loads(found.stdout)["damaged"] == ["priors/c/0 is missing"]
    assert json.loads(found.stdout)["not_in_the_manifest"] == ["left.partial"]
    assert found.stderr.startswith("error: ")
    assert len(found.stderr.splitlines()) == 1
