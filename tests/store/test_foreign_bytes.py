"""Files that fuzzing found: each once ended in another error than ours, in too much memory, or ended the process."""

import io
import json
import warnings
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from command_line import run_here
from processes import run_python
from small import X, fit, one_sentence, rewrite_manifest, unfinish

import fxdask
from fxdask.errors import ClusterError, FxdaskError, InvalidInputError, StoreFormatError
from fxdask.execution.connection import ClusterAddress
from fxdask.experiment.example import read_example
from fxdask.experiment.results import ResultsFile
from fxdask.sizes import NodeBlock
from fxdask.store.model import ModelStore
from fxdask.store.parquet import open_parquet
from fxdask.store.parquet_rows import column_pieces
from fxdask.store.score_table import HEADER, SUCCESS, ScoreTable, peek_table
from fxdask.store.scores import ScoreStore
from fxdask.store.sources import NpyAddress, array_of_npy, read_pieces
from fxdask.workflows.data import as_labels, as_samples

TEXT_LABELS = np.array(["ash", "oak"])[np.arange(40) % 2]


def npy_header(text, version=b"\x01\0"):
    length = len(text).to_bytes(2 if version == b"\x01\0" else 4, "little")
    return b"\x93NUMPY" + version + length + text.encode()


@pytest.mark.parametrize(
    "content",
    [
        npy_header("{'descr': '<f4', 'shape': (2, 2), [\n"),  # a bracket that is not closed
        npy_header("{'descr': '<f4'}\n" + " " * 3 + "x\n y"),
        npy_header("(" * 5000),
        npy_header("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 'x'), }\n"),
        b"\x93NUMPY\x02\0" + b"\xff" * 4 + b"{}",  # claims a header of 4 GiB
        b"",
    ],
)
def test_damaged_npy_headers_are_refused(tmp_path, content):
    (tmp_path / "X.npy").write_bytes(content)
    with pytest.raises(InvalidInputError, match="is not a readable .npy file") as error:
        NpyAddress(str(tmp_path / "X.npy")).header()
    one_sentence(error)


def test_an_array_is_read_from_bytes_without_more_memory_than_they_take():
    for values in (np.arange(6.0).reshape(2, 3), np.asfortranarray(np.arange(6).reshape(2, 3)), np.array("text")):
        stream = io.BytesIO()
        np.save(stream, values)
        assert np.array_equal(array_of_npy(stream.getvalue()), values)
    huge = npy_header("{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000,), }\n")
    with pytest.raises(ValueError, match="buffer is smaller"):
        array_of_npy(huge)


def test_no_changed_byte_of_a_parquet_footer_ends_the_process(tmp_path):
    """In a process of its own: pyarrow ends it if one asks for the bytes of a column and that part is damaged."""
    pq.write_table(pa.table({"x": [1.0, 2.0]}), tmp_path / "X.parquet")
    program = (
        "import sys\nfrom pathlib import Path\nfrom fxdask.errors import FxdaskError\n"
        "from fxdask.store.parquet import open_parquet\n"
        "file = Path(sys.argv[1])\nintact = file.read_bytes()\n"
        "first = len(intact) - 8 - int.from_bytes(intact[-8:-4], 'little')\n"
        "for at in range(first, first + 60):\n"
        "    for change in (1, 2):\n"
        "        file.write_bytes(intact[:at] + bytes([intact[at] ^ change]) + intact[at + 1 :])\n"
        "        try:\n            open_parquet(file).address()\n        except FxdaskError:\n            pass\n"
    )
    status, _, errors = run_python("-c", program, tmp_path / "X.parquet")
    assert status == 0, errors


@pytest.mark.parametrize("metadata", [b"[1]", b'{"index_columns": 3}', b'"x"'])
def test_metadata_of_pandas_that_name_no_index_are_ignored(tmp_path, metadata):
    table = pa.table({"x": [1.0, 2.0]}).replace_schema_metadata({b"pandas": metadata})
    pq.write_table(table, tmp_path / "X.parquet")
    assert open_parquet(tmp_path / "X.parquet").names == ("x",)


@pytest.mark.parametrize("metadata", [b"\xff", b"{", b"[" * 100_000])
def test_damaged_metadata_of_pandas_are_refused(tmp_path, metadata):
    table = pa.table({"x": [1.0, 2.0]}).replace_schema_metadata({b"pandas": metadata})
    pq.write_table(table, tmp_path / "X.parquet")
    with pytest.raises(InvalidInputError, match="is not a readable Parquet file") as error:
        open_parquet(tmp_path / "X.parquet")
    one_sentence(error)


def test_labels_that_are_no_valid_text_are_refused(tmp_path):
    offsets = pa.py_buffer(np.array([0, 1], np.int32).tobytes())
    texts = pa.StringArray.from_buffers(1, offsets, pa.py_buffer(b"\xff"))
    pq.write_table(pa.table({"y": texts}), tmp_path / "y.parquet")
    with pytest.raises(InvalidInputError, match="is not a readable Parquet file"):
        as_labels(tmp_path / "y.parquet")


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """Scores of text labels as a store and as a table."""
    folder = tmp_path_factory.mktemp("scored")
    model = fit(y=TEXT_LABELS)
    for name in ("scores.zarr", "scores.parquet"):
        fxdask.batch_score(model, X, folder / name)
    return folder


def test_finished_chunks_of_text_labels_are_read_again(scored):
    classes = np.array(["ash", "oak"])
    of_store = ScoreStore.open(str(scored / "scores.zarr")).read_done(0, classes)
    of_table = ScoreTable.open(str(scored / "scores.parquet")).read_done(0, classes)
    assert of_store.shape == (40, 2)
    assert np.array_equal(of_store, of_table)
    for kind, name in ((ScoreStore, "scores.zarr"), (ScoreTable, "scores.parquet")):
        assert kind.open(str(scored / name)).read_done(0, np.array(["ash", "elm"])) is None


@pytest.mark.parametrize(
    ("name", "value"), [("n_samples", None), ("n_samples", -1), ("rows_per_chunk", 0), ("rows_per_chunk", [5])]
)
def test_scores_with_impossible_counts_are_refused(tmp_path, name, value):
    store = tmp_path / "scores.zarr"
    fxdask.batch_score(fit(), X, store)
    opened = zarr.open_group(store)
    opened.attrs["fxdask"] = {**opened.attrs["fxdask"], name: value}
    rewrite_manifest(store)
    with pytest.raises(StoreFormatError, match=f"its header has {name}") as error:
        ScoreStore.open(str(store))
    one_sentence(error)


def test_a_ranking_with_an_impossible_block_size_is_refused(tmp_path):
    store = tmp_path / "ranking.zarr"
    fxdask.rank_features(X, TEXT_LABELS, criteria=["fisher"], store=store)
    opened = zarr.open_group(store)
    header = opened.attrs["fxdask"]
    opened.attrs["fxdask"] = {**header, "sizes": {**header["sizes"], "features_per_block": "x"}}
    rewrite_manifest(store)
    with pytest.raises(StoreFormatError, match="features_per_block 'x' instead of a number from 1 on"):
        fxdask.rank_features(X, TEXT_LABELS, criteria=["fisher"], store=store)


@pytest.mark.parametrize(
    "changes",
    [
        {"n_samples": "x"},
        {"rows_per_file": 0},
        {"rows_per_file": -0.0},
        {"columns": False},
        {"columns": [1]},
        {"job": 3},
    ],
)
def test_score_tables_with_impossible_headers_are_refused(tmp_path, changes):
    table = tmp_path / "scores.parquet"
    fxdask.batch_score(fit(), X, table)
    for name in (SUCCESS, HEADER):
        (table / name).write_text(json.dumps(json.loads((table / name).read_text()) | changes))
        with pytest.raises(StoreFormatError, match="damaged: its header") as error:
            peek_table(str(table))
        one_sentence(error)
        (table / SUCCESS).unlink(missing_ok=True)


def test_an_array_with_damaged_metadata_is_refused_when_a_fit_looks_for_it(tmp_path):
    store = tmp_path / "model.zarr"
    fit(store=store, nodes_per_block=50)
    unfinish(store)
    (store / "statistics" / "zarr.json").write_text("{")
    with pytest.raises(StoreFormatError, match="statistics cannot be read") as error:
        ModelStore.open(str(store), finished=False).is_done(NodeBlock(0, 0, 50))
    one_sentence(error)


@pytest.mark.parametrize("changes", [{"source_counts": 7}, {"source_counts": [[1, 2]]}])
def test_impossible_spread_counts_are_refused(tmp_path, changes):
    fit(store=tmp_path / "model.zarr")
    assert_refused_with(tmp_path / "model.zarr", changes)


@pytest.mark.parametrize("training", ["x", [1], {"kind": "else"}, {"kind": "npy", "other": 1}])
def test_an_impossible_address_of_training_samples_is_refused(tmp_path, training):
    fit(store=tmp_path / "model.zarr", keep_projections="table", combine="sum")
    assert_refused_with(tmp_path / "model.zarr", {"training": training})


def assert_refused_with(store, changes):
    opened = zarr.open_group(store)
    opened.attrs["fxdask"] = {**opened.attrs["fxdask"], **changes}
    rewrite_manifest(store)
    with pytest.raises(StoreFormatError, match="damaged") as error:
        fxdask.load(store)
    one_sentence(error)


def test_info_shows_names_that_are_no_valid_text(tmp_path):
    store = tmp_path / "scores.zarr"
    fxdask.batch_score(fit(), X, store)
    opened = zarr.open_group(store)
    changes = {"model": "lone \ud800", "classes": [{"a": 1}, "oak"]}
    opened.attrs["fxdask"] = {**opened.attrs["fxdask"], **changes}
    rewrite_manifest(store)
    done = run_here(tmp_path, "info", store)
    assert done.returncode == 0, done.stderr
    assert "lone \\ud800" in done.stdout
    assert "[{'a': 1}, 'oak']" in done.stdout


def test_info_shows_a_begun_model_without_parameters(tmp_path):
    store = tmp_path / "model.zarr"
    fit(store=store)
    unfinish(store)
    opened = zarr.open_group(store)
    opened.attrs["fxdask"] = {name: value for name, value in opened.attrs["fxdask"].items() if name != "identity"}
    done = run_here(tmp_path, "info", store, "--json")
    assert json.loads(done.stdout)["parameters"] is None


def test_a_message_is_one_line_whatever_it_quotes():
    for kind in (FxdaskError, InvalidInputError, StoreFormatError, fxdask.errors.StoreExistsError):
        assert str(kind("a\nb\u2028c\r\nd")) == "a b c d"


def test_a_wrong_word_is_refused_in_one_line(tmp_path):
    done = run_here(tmp_path, "reproduce", "--json")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("Error: Missing argument")
    assert "mnist" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    "content", ["[" * 100_000, "{}", '{"address": ""}', '{"address": [1]}', '{"address": null}', "\xff"]
)
def test_a_damaged_scheduler_file_is_refused(tmp_path, content):
    (tmp_path / "scheduler.json").write_text(content)
    with pytest.raises(ClusterError, match="is not a scheduler file") as error:
        assert ClusterAddress(scheduler_file=str(tmp_path / "scheduler.json")).resolved
    one_sentence(error)


@pytest.mark.parametrize("name", ["tested", "fallbacks"])
def test_results_with_impossible_counts_are_refused(tmp_path, name):
    count = {"correct": {"extended_fisher": 1, "fisher": 1}, "tested": 2, "fallbacks": 0, name: 10**400}
    of_seed = {"seconds": 1.0, "processes": {}, "pairs": {"0-1": count}}
    content = {"format": 1, "identity": {}, "facts": {}, "seeds": {"0": of_seed}}
    (tmp_path / "results.json").write_text(json.dumps(content))
    with pytest.raises(StoreFormatError, match="impossible counts of pair 0-1, seed 0"):
        ResultsFile(tmp_path / "results.json", {})


@pytest.mark.parametrize("content", [b"", b"PK", b"\x93NUMPY"])
def test_a_damaged_example_is_no_example(tmp_path, content):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("identity.npy", content)
    for name, damaged in (("whole.npz", content), ("member.npz", stream.getvalue())):
        (tmp_path / name).write_bytes(damaged)
        assert read_example(tmp_path / name, {"n_nodes": 3}, (0, 1), 0) is None


def test_samples_in_empty_chunks_are_refused(tmp_path):
    zarr.create_array(tmp_path / "X.zarr", data=np.ones((4, 2)), chunks=(2, 2))
    file = tmp_path / "X.zarr" / "zarr.json"
    metadata = json.loads(file.read_text())
    metadata["chunk_grid"]["configuration"]["chunk_shape"] = [0, 2]
    file.write_text(json.dumps(metadata))
    with pytest.raises(FxdaskError, match=r"its chunks have the shape \(0, 2\)"):
        fxdask.FisherNetworkClassifier(10, 2).fit(tmp_path / "X.zarr", [0, 1, 0, 1])


def test_a_nan_with_unusual_bits_is_read_without_a_warning(tmp_path):
    """A signalling NaN, of which NumPy warns when it becomes float64."""
    narrow = np.array([0x7F800001, 0x3F800000], np.uint32).view(np.float32)
    pq.write_table(pa.table({"a": narrow, "b": np.ones(2)}), tmp_path / "X.parquet")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        samples = as_samples(open_parquet(tmp_path / "X.parquet"))
        (rows,) = read_pieces(samples.handle, 0, 2)
        ((_, values),) = column_pieces(samples.handle)
    assert np.isnan(rows[0, 0])
    assert np.array_equal(rows, values.T, equal_nan=True)


def test_labels_that_claim_too_much_are_refused_before_they_are_read(tmp_path):
    """As many labels as samples need no more memory than a fit allows; a foreign array can claim any number."""
    zarr.create_array(tmp_path / "y.zarr", shape=(2**40,), chunks=(4,), dtype="int64")
    with pytest.raises(InvalidInputError, match=f"y has {2**40} labels but X has 40 samples"):
        fxdask.FisherNetworkClassifier(5).fit(np.zeros((40, 2)), tmp_path / "y.zarr")


def test_samples_of_an_impossible_shape_are_refused(tmp_path):
    zarr.create_array(tmp_path / "X.zarr", data=np.ones((8, 3)), chunks=(4, 3))
    metadata = json.loads((tmp_path / "X.zarr" / "zarr.json").read_text())
    (tmp_path / "X.zarr" / "zarr.json").write_text(json.dumps(metadata | {"shape": [10**400, 3]}))
    with pytest.raises(StoreFormatError, match="its shape is impossible") as error:
        as_samples(tmp_path / "X.zarr")
    assert "chunks" not in one_sentence(error)
