"""Damaged stores: the error names the array or the header, and no number is computed from it."""

import json
import shutil

import numpy as np
import pytest
import zarr
from small import X, fit, one_sentence, rewrite_manifest, unfinish

import fxdask
from fxdask.errors import StoreFormatError


def test_a_missing_chunk_is_an_error_not_zeros(original, tmp_path):
    store = shutil.copytree(original, tmp_path / "model.zarr")
    (store / "selected" / "weights" / "c" / "0" / "0").unlink()
    with pytest.raises(StoreFormatError, match="damaged: selected/weights/c/0/0 is missing"):
        fxdask.load(store)


def test_a_missing_block_chunk_is_reported_by_responses_and_computed_by_a_resume(tmp_path):
    store = tmp_path / "model.zarr"
    parameters = {"store": store, "keep_projections": "all", "keep_weights": True, "nodes_per_block": 10}
    expected = fit(**parameters).responses(X[0])
    (store / "projections" / "c" / "2" / "0").unlink()
    with pytest.raises(StoreFormatError, match="damaged: projections has no chunk 2"):
        fxdask.load(store).responses(X[0])
    unfinish(store)
    (store / "weights" / "c" / "3" / "0").unlink()
    resumed = fit(**parameters)
    assert resumed.fit_info_["n_blocks_resumed"] == 3
    assert np.array_equal(resumed.responses(X[0]), expected)


@pytest.mark.parametrize("name", ["selected/weights", "labels", "priors", "statistics"])
def test_the_error_about_a_flipped_bit_names_its_array(original, name, tmp_path):
    store = shutil.copytree(original, tmp_path / "m")
    chunk = next(path for path in (store / name).rglob("*") if path.is_file() and path.name != "zarr.json")
    content = bytearray(chunk.read_bytes())
    content[3] ^= 4
    chunk.write_bytes(content)
    with pytest.raises(StoreFormatError, match=f"damaged: {name} cannot be read .*checksum") as error:
        fxdask.load(store)
    one_sentence(error)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("selection", {"shape": [1, 3]}),
        ("priors", {"shape": [10**15]}),
        ("selected/weights", {"data_type": "int32"}),
        ("statistics", {"shape": [4, 2, 49]}),
    ],
)
def test_arrays_that_contradict_the_header_are_refused(original, name, change, tmp_path):
    store = shutil.copytree(original, tmp_path / "m")
    metadata = store / name / "zarr.json"
    metadata.write_text(json.dumps({**json.loads(metadata.read_text()), **change}))
    with pytest.raises(StoreFormatError, match=f"damaged: {name}/zarr.json "):
        fxdask.load(store)
    rewrite_manifest(store)
    with pytest.raises(StoreFormatError, match=f"damaged: {name} ") as error:
        fxdask.load(store)
    one_sentence(error)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sizes", None),
        ("identity", "x"),
        ("classes", []),
        ("nodes_per_block", 0),
        ("source_counts", None),
        ("largest", "x"),
    ],
)
def test_headers_with_wrong_types_are_refused(original, key, value, tmp_path):
    store = shutil.copytree(original, tmp_path / "m")
    opened = zarr.open_group(store)
    opened.attrs["fxdask"] = {**opened.attrs["fxdask"], key: value}
    with pytest.raises(StoreFormatError, match="damaged") as error:
        fxdask.load(store)
    one_sentence(error)
