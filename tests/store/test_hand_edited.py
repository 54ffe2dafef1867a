"""Stores that were edited on purpose, with a matching manifest: refused in one sentence, with little memory.

The manifest detects none of these edits, because it is written again after each of them.
"""

import json
import os
import pickle
import shutil
import tracemalloc

import google_crc32c
import numcodecs
import numpy as np
import pytest
import zarr
from small import X, fit, one_sentence, rewrite_manifest, unfinish

import fxdask
from fxdask.errors import FxdaskError, StoreFormatError
from fxdask.store.model import ModelStore
from fxdask.store.verify import verify_store

HUGE = 10**12
MOST_BYTES = 32 * 2**20


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    store = tmp_path_factory.mktemp("original") / "model.zarr"
    fit(store=store, nodes_per_block=20, keep_projections="all")
    return store


@pytest.fixture
def store(original, tmp_path):
    return shutil.copytree(original, tmp_path / "model.zarr")


def edit_header(store, **changes):
    opened = zarr.open_group(store)
    opened.attrs["fxdask"] = {**opened.attrs["fxdask"], **changes}


def edit_array(store, name, **changes):
    file = store / name / "zarr.json"
    metadata = json.loads(file.read_text())
    if "chunks" in changes:
        metadata["chunk_grid"]["configuration"]["chunk_shape"] = changes.pop("chunks")
    file.write_text(json.dumps(metadata | changes))


def write_chunk(file, content):
    file.write_bytes(content + google_crc32c.value(content).to_bytes(4, "little"))


def refused(call):
    """Check that a call is refused in one sentence without allocating much memory -> the sentence."""
    tracemalloc.start()
    try:
        with pytest.raises(FxdaskError) as error:
            call()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MOST_BYTES
    return one_sentence(error)


def sizes_of(store):
    return dict(zarr.open_group(store, mode="r").attrs["fxdask"]["sizes"])


def claim(store, dimension, length, *, chunks):
    """Set one dimension to a false length, in the header and in every array."""
    edit_header(store, sizes=sizes_of(store) | {dimension: length})
    for file in store.rglob("zarr.json"):
        metadata = json.loads(file.read_text())
        for axis, name in enumerate(metadata.get("dimension_names") or ()):
            if name == dimension:
                metadata["shape"][axis] = length
                if chunks == "whole":
                    metadata["chunk_grid"]["configuration"]["chunk_shape"][axis] = length
                file.write_text(json.dumps(metadata))
    rewrite_manifest(store)


@pytest.mark.parametrize("chunks", ["whole", "many"])
@pytest.mark.parametrize("dimension", ["node", "input", "sample", "class", "selected", "rank"])
def test_a_model_with_a_huge_dimension_is_refused(store, dimension, chunks):
    claim(store, dimension, HUGE, chunks=chunks)
    assert "damaged" in refused(lambda: fxdask.load(store))


@pytest.mark.parametrize("chunks", ["whole", "many"])
@pytest.mark.parametrize("dimension", ["node", "block", "sample"])
def test_an_unfinished_model_with_a_huge_dimension_is_refused(store, dimension, chunks):
    claim(store, dimension, HUGE, chunks=chunks)
    unfinish(store)
    assert "damaged" in refused(lambda: fit(store=store, nodes_per_block=20, keep_projections="all"))


@pytest.mark.parametrize("n_nodes", [10**10, 10**19, 10**400])
def test_more_chunks_than_any_store_has_are_refused(store, n_nodes):
    edit_array(store, "statistics", shape=[4, 2, n_nodes], chunks=[4, 2, 1])
    rewrite_manifest(store)
    assert "statistics" in refused(lambda: ModelStore.open(str(store)).array("statistics"))


def test_empty_chunks_are_refused(store):
    edit_array(store, "selection", chunks=[0, 3])
    rewrite_manifest(store)
    assert "selection has chunks of shape (0, 3)" in refused(lambda: fxdask.load(store))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes_per_block": HUGE}, "blocks of 1000000000000 nodes"),
        ({"nodes_per_block": "7"}, "blocks of 7 nodes"),
        ({"sizes": None}, "sizes None"),
        ({"sizes": "abc"}, "sizes 'abc'"),
        ({"sizes": [1, 2]}, "sizes [1, 2]"),
        ({"identity": "x"}, "identity 'x'"),
        ({"job": 3}, "does not name its job"),
        ({"job": "../../.."}, "does not name its job"),
    ],
)
def test_wrong_headers_of_unfinished_models_are_refused(store, changes, message):
    edit_header(store, **changes)
    unfinish(store)
    sentence = refused(lambda: fit(store=store, nodes_per_block=20, keep_projections="all"))
    assert "damaged" in sentence
    assert message in sentence


@pytest.mark.parametrize(
    "changes",
    [
        {"n_selected": "many"},
        {"combine": "else"},
        {"spread": "x"},
        {"bandwidth": -1},
        {"bandwidth": [1]},
        {"normalize": "x"},
        {"seed": -1},
        {"seed": "x"},
        {"priors": [1, "x"]},
        {"keep_projections": 3},
        {"n_nodes": 7},
        {"n_nodes": HUGE},
        {"n_selected": 1},
        {"n_selected": 10**9},
    ],
)
def test_impossible_parameters_are_refused(store, changes):
    identity = zarr.open_group(store, mode="r").attrs["fxdask"]["identity"]
    edit_header(store, identity=identity | changes)
    rewrite_manifest(store)
    assert "damaged" in refused(lambda: fxdask.load(store))


@pytest.mark.parametrize(
    "classes",
    [
        {"dtype": "<U1000000000", "values": ["a", "b"]},
        {"dtype": "O", "values": [{"a": 1}, 2, 3]},
        {"dtype": "O", "values": [{"a": 1}, "b"]},
        {"dtype": "<i8", "values": [1]},
        {"dtype": "nothing", "values": [0, 1]},
        {"dtype": "(1,", "values": [0, 1]},
        {"dtype": "1 2", "values": [0, 1]},
        {"dtype": "<f4", "values": [0.0, 1e300]},
        {"dtype": "<i8", "values": [0.0, 1.5]},
        {"dtype": "<U1", "values": ["ash", "oak"]},
    ],
)
def test_impossible_classes_are_refused(store, classes):
    edit_header(store, classes=classes)
    rewrite_manifest(store)
    assert "damaged" in refused(lambda: fxdask.load(store))


@pytest.mark.parametrize("changes", [{"names": 3}, {"names": ["a"]}, {"bandwidth_fallbacks": 7}, {"sizes": 3}])
def test_other_impossible_header_fields_are_refused(store, changes):
    edit_header(store, **changes)
    rewrite_manifest(store)
    assert "damaged" in refused(lambda: fxdask.load(store))


@pytest.mark.parametrize("node", [-2, 50])
def test_selected_nodes_out_of_range_are_refused(store, node):
    selection = np.asarray(zarr.open_group(store, mode="r")["selection"])
    selection[0, 1] = node
    write_chunk(store / "selection" / "c" / "0" / "0", selection.tobytes())
    rewrite_manifest(store)
    assert "damaged: selection" in refused(lambda: fxdask.load(store))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("priors", np.nan),
        ("priors", -0.5),
        ("shift", np.inf),
        ("selected/weights", np.nan),
        ("selected/projections", np.inf),
        ("selected/bandwidth", 0),
        ("selected/bandwidth", np.inf),
        ("selected/spread", np.nan),
        ("selected/nodes", 49),
        ("importances", np.nan),
        ("importances", -1.5),
    ],
)
def test_impossible_array_values_are_refused(store, name, value):
    assert_refused_with(store, name, value)


def assert_refused_with(store, name, value):
    """Write one impossible value into an array, with a checksum and a manifest that agree."""
    array = zarr.open_group(store, mode="r")[name]
    chunk = next(file for file in sorted((store / name / "c").rglob("*")) if file.is_file())
    values = np.frombuffer(chunk.read_bytes()[:-4], array.dtype).copy()
    values[0] = value
    write_chunk(chunk, values.tobytes())
    rewrite_manifest(store)
    assert f"damaged: {name} has values that no fit writes" in refused(lambda: fxdask.load(store))


@pytest.fixture(scope="module")
def joint_original(tmp_path_factory):
    store = tmp_path_factory.mktemp("joint") / "model.zarr"
    fit(store=store, combine="joint", selection="joint")
    return store


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("overlaps", np.nan),
        ("overlaps", -1),
        ("selected/precision", np.inf),
        ("selected/log_det", np.nan),
        ("selected/shrinkage", np.nan),
        ("selected/location", np.inf),
    ],
)
def test_impossible_values_of_joint_models_are_refused(joint_original, tmp_path, name, value):
    assert_refused_with(shutil.copytree(joint_original, tmp_path / "model.zarr"), name, value)


@pytest.mark.parametrize("name", ["overlaps", "selected/precision", "selected/log_det", "selection"])
def test_joint_models_without_an_array_or_with_a_short_one_are_refused(joint_original, tmp_path, name):
    store = shutil.copytree(joint_original, tmp_path / "model.zarr")
    shape = list(zarr.open_group(store, mode="r")[name].shape)
    edit_array(store, name, shape=[*shape[:-1], shape[-1] - 1])
    rewrite_manifest(store)
    assert "damaged" in refused(lambda: fxdask.load(store))
    shutil.rmtree(store / name)
    rewrite_manifest(store)
    assert "damaged" in refused(lambda: fxdask.load(store))


@pytest.mark.parametrize("name", ["zarr.json", "manifest/files/c/0", "priors/c/0", "priors/zarr.json"])
def test_endless_files_are_refused(store, name):
    (store / name).unlink()
    (store / name).symlink_to("/dev/zero")
    assert "damaged" in refused(lambda: fxdask.load(store))
    if name.startswith("priors"):
        assert [description.split()[0] for description in verify_store(store).damaged] == [name]
    else:
        assert "damaged" in refused(lambda: verify_store(store))


@pytest.mark.parametrize("label", [-1, 2, 2**31 - 1])
def test_labels_out_of_range_are_refused(store, label):
    labels = np.asarray(zarr.open_group(store, mode="r")["labels"])
    labels[3] = label
    write_chunk(store / "labels" / "c" / "0", labels.tobytes())
    rewrite_manifest(store)
    assert "labels outside of the 2 classes" in refused(lambda: fxdask.load(store))


@pytest.mark.parametrize(
    "codecs",
    [
        [{"name": "bytes", "configuration": {"endian": "big"}}],
        [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "gzip", "configuration": {"level": 1}}],
        [{"name": "numcodecs.pickle"}, {"name": "crc32c"}],
        [],
    ],
)
def test_other_codecs_are_refused(store, codecs):
    edit_array(store, "priors", codecs=codecs)
    rewrite_manifest(store)
    assert "damaged: priors" in refused(lambda: fxdask.load(store))


def edit_manifest(store, changes):
    """Change entries of the manifest, as if it had been written so."""
    manifest = zarr.open_group(store, mode="r")["manifest/files"]
    text = json.dumps(json.loads(np.asarray(manifest[...]).tobytes()) | changes).encode()
    edit_array(store, "manifest/files", shape=[len(text)], chunks=[len(text)])
    write_chunk(store / "manifest" / "files" / "c" / "0", text)


def test_a_negative_length_in_a_manifest_is_refused(store):
    edit_manifest(store, {"priors/c/0": [-5, "00000000"]})
    for call in (fxdask.load, verify_store):
        assert "it gives 'priors/c/0' a length of -5" in refused(lambda call=call: call(store))


@pytest.mark.parametrize(
    "name", ["../outside", "/etc/hostname", "labels/../../outside", "a//b", "C:\\x", "labels/./c/0"]
)
def test_manifest_names_outside_of_the_store_are_refused(store, name):
    (store.parent / "outside").write_text("secret")
    edit_manifest(store, {name: [6, "00000000"]})
    for call in (fxdask.load, verify_store):
        assert "outside of the store" in refused(lambda call=call: call(store))


def test_a_manifest_larger_than_its_file_is_refused(store):
    edit_array(store, "manifest/files", shape=[HUGE], chunks=[HUGE])
    assert "its manifest cannot be read (its metadata claim" in refused(lambda: fxdask.load(store))


class MakesFolder:
    def __reduce__(self):
        return os.mkdir, ("ran",)


def pickled_array(folder):
    """A Zarr array of format 2 whose codec unpickles its values."""
    array = zarr.create_array(
        folder, shape=(4, 4), chunks=(4, 4), dtype="f8", zarr_format=2, filters=[numcodecs.Pickle()], compressors=None
    )
    (folder / "0.0").write_bytes(pickle.dumps(MakesFolder()))
    return array


def test_nothing_is_unpickled(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(numcodecs.pickles, "ALLOW_UNSAFE_PICKLE_DECODE", True, raising=False)
    pickled_array(tmp_path / "samples.zarr")
    for call in (
        lambda: fxdask.load(store).predict(tmp_path / "samples.zarr"),
        lambda: fit(tmp_path / "samples.zarr", [0, 1, 0, 1]),
    ):
        with pytest.raises(FxdaskError, match="cannot be read .*pickle"):
            call()
    shutil.rmtree(store / "priors")
    pickled_array(store / "priors")
    with pytest.raises(StoreFormatError):
        fxdask.load(store)
    header = zarr.open_group(store, mode="r").attrs.asdict()
    (store / "zarr.json").unlink()
    (store / ".zgroup").write_text('{"zarr_format": 2}')
    (store / ".zattrs").write_text(json.dumps(header))
    with pytest.raises(FxdaskError):
        fxdask.load(store)
    assert not (tmp_path / "ran").exists()


def test_an_unedited_store_loads(store):
    rewrite_manifest(store)
    assert np.array_equal(fxdask.load(store).predict(X), fit().predict(X))
