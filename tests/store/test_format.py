"""FORMAT.md describes what fxdask writes."""

import contextlib
import json
import re
import shutil
from dataclasses import fields
from pathlib import Path
from unittest.mock import Mock

import dask.array as da
import google_crc32c
import numpy as np
import pytest
import zarr
from small import X, Y, fit

import fxdask
from fxdask.execution import fit as fit_graphs
from fxdask.kernels.statistics import SPREAD_SOURCES
from fxdask.kernels.weights import FINGERPRINT_FEATURES
from fxdask.store import layout
from fxdask.store.group import begin_group
from fxdask.store.lease import SECONDS_UNTIL_EXPIRED, Holder
from fxdask.store.scores import ScoreStore
from fxdask.workflows import pool

TEXT = Path(layout.__file__).with_name("FORMAT.md").read_text()
MODEL_SPECS = (*layout.BLOCK_ARRAYS, *layout.MODEL_ARRAYS, *layout.POOL_ARRAYS, layout.MANIFEST)
SCORE_SPECS = (*layout.SCORE_ARRAYS, layout.MANIFEST)
RANKING_SPECS = (*layout.RANKING_ARRAYS, layout.MANIFEST)


def section(title):
    """The text below one heading, up to the next heading of the same or a higher level."""
    level, rest = re.search(rf"^(#+) {re.escape(title)}\n(.*)", TEXT, re.MULTILINE | re.DOTALL).groups()
    return re.split(rf"^#{{1,{len(level)}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def table_rows(text):
    """First column without quotes -> the other columns, of all tables in a text."""
    lines = re.findall(r"^\|.*\|$", text, re.MULTILINE)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0].strip("`"): row[1:] for row in rows}


def header_of(store):
    return json.loads((store / "zarr.json").read_text())["attributes"]["fxdask"]


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """One store of each kind: finished and unfinished models, scores with true labels."""
    folder = tmp_path_factory.mktemp("format")
    options = {"nodes_per_block": 20, "keep_projections": "all", "keep_weights": True, "normalize": "feature"}
    options["combine"] = "sum"
    model = fit(store=folder / "model.zarr", **options)
    fxdask.batch_score(model, X, folder / "scored.zarr", y=Y, likelihood=True)
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(fit_graphs, "fit_blocks", Mock(side_effect=KeyboardInterrupt))
        fit(da.from_array(X, chunks=(20, 4)), store=folder / "unfinished.zarr")
    fit(store=folder / "joint.zarr", combine="joint", selection="joint")
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(pool, "sum_pool", Mock(side_effect=KeyboardInterrupt))
        fit(store=folder / "pool.zarr", selection="joint")
    np.save(folder / "X.npy", X)
    fit(folder / "X.npy", store=folder / "tables.zarr", combine="sum", keep_projections="table")
    begin_group(str(folder / "created.zarr"), "model", [])
    fxdask.rank_features(X, Y, ["pearson", "relief"], store=folder / "ranking.zarr")
    return folder


def test_the_number_is_the_current_format():
    assert TEXT.startswith(f"# The store format, number {layout.FORMAT}\n")
    assert [int(number) for number in table_rows(section("History")) if number.isdigit()] == [
        *range(1, layout.FORMAT + 1)
    ]


@pytest.mark.parametrize(
    ("title", "specs"),
    [
        ("Arrays of a model", MODEL_SPECS),
        ("Arrays of scores", SCORE_SPECS),
        ("Arrays of a ranking", RANKING_SPECS),
    ],
    ids=["model", "scores", "ranking"],
)
def test_every_array_is_described(title, specs):
    described = table_rows(section(title).partition("\n\n**")[0])
    assert set(described) - {"array", "---"} == {spec.name for spec in specs}
    for spec in specs:
        dimensions, dtype, chunked, _ = described[spec.name]
        assert dimensions == ", ".join(spec.dimensions), spec.name
        assert chunked == (spec.chunked or "-"), spec.name
        assert dtype == spec.dtype or not spec.dtype, spec.name


@pytest.mark.parametrize(
    ("store", "kind"),
    [
        ("model.zarr", "Model"),
        ("tables.zarr", "Model"),
        ("unfinished.zarr", "Model"),
        ("created.zarr", "Model"),
        ("scored.zarr", "Scores"),
        ("ranking.zarr", "Ranking"),
    ],
)
def test_every_header_field_is_described(stores, store, kind):
    header = header_of(stores / store)
    described = {**table_rows(section("Header").partition("###")[0]), **table_rows(section(kind))}
    assert set(header) <= set(described)
    only_finished = {name for name, row in described.items() if "only if finished" in row[-1]}
    assert only_finished & set(header) == (only_finished if header.get("finished") else set())


def test_every_field_inside_the_header_is_described(stores):
    header, text = header_of(stores / "tables.zarr"), section("Model")
    for outer in ("identity", "sizes", "classes", "bandwidth_fallbacks", "training"):
        for name in header[outer]:
            assert f"`{name}`" in text, (outer, name)


def arrays_in(group):
    return {name for name, member in group.members(max_depth=None) if isinstance(member, zarr.Array)}


def test_all_arrays_of_the_stores_are_described(stores):
    """The stores hold every array that the table names, so no array is described that is never written."""
    names = ("model.zarr", "unfinished.zarr", "joint.zarr", "pool.zarr", "tables.zarr")
    written = set().union(*(arrays_in(zarr.open_group(stores / name, mode="r")) for name in names))
    assert written == {spec.name for spec in MODEL_SPECS} - {"probes", "codes", "samples"}  # only on a cluster


def test_all_arrays_of_scores_are_described(stores):
    group = zarr.open_group(stores / "scored.zarr", mode="r")
    assert arrays_in(group) == {spec.name for spec in SCORE_SPECS}
    expected = np.log(np.exp(group["scores"][:]).sum(axis=1))
    np.testing.assert_allclose(group["log_likelihood"][:], expected, rtol=1e-12)


def test_all_arrays_of_a_ranking_are_described(stores):
    group = zarr.open_group(stores / "ranking.zarr", mode="r")
    assert arrays_in(group) == {spec.name for spec in RANKING_SPECS if not spec.name.startswith("staged")}
    assert len(header_of(stores / "ranking.zarr")["results"]) == group["results"].shape[0]


def test_codecs_are_those_in_the_text(stores, tmp_path):
    ScoreStore.create(str(tmp_path / "strings.zarr"), 5, 5, np.array(["a", "b"]), {})
    codecs = {}
    for folder in (stores / "model.zarr", stores / "scored.zarr", tmp_path / "strings.zarr"):
        for file in folder.rglob("zarr.json"):
            metadata = json.loads(file.read_text())
            if metadata["node_type"] == "array":
                codecs.setdefault(metadata["data_type"] == "string", set()).add(
                    tuple(codec["name"] for codec in metadata["codecs"])
                )
    assert codecs == {False: {("bytes", "crc32c")}, True: {("vlen-utf8", "crc32c")}}
    assert "the codecs `bytes` (little-endian) and `crc32c`, and strings by `vlen-utf8` and `crc32c`" in TEXT


def test_quantities_and_codes_are_those_in_the_text():
    rows = table_rows(section("Arrays of a model"))
    assert [rows[str(index)][0] for index in range(len(layout.QUANTITIES))] == [f"`{q}`" for q in layout.QUANTITIES]
    sentence = re.search(r"The codes of `spread_source` are .*", TEXT)[0]
    for code, name in enumerate(SPREAD_SOURCES):
        assert f"{code} for `{name}`" in sentence


def test_marks_fingerprint_and_manifest_follow_the_text(stores):
    group, header = zarr.open_group(stores / "model.zarr", mode="r"), header_of(stores / "model.zarr")
    assert set(group["blocks_done"][:]) == {int(header["job"][:16], 16) | 1}
    assert np.array_equal(group["canaries"][:], group["weights"][:][[0, 25, 49], :FINGERPRINT_FEATURES])
    assert f"(at most {FINGERPRINT_FEATURES})" in TEXT
    manifest = json.loads(bytes(group["manifest/files"][:]))
    files = [path for path in (stores / "model.zarr").rglob("*") if path.is_file()]
    names = {path.relative_to(stores / "model.zarr").as_posix(): path for path in files}
    assert set(manifest) == set(names) - {"manifest/files/c/0"}
    for name, (length, checksum) in manifest.items():
        content = names[name].read_bytes()
        body = content if name.endswith("zarr.json") else content[:-4]
        assert (length, checksum) == (len(content), google_crc32c.value(body).to_bytes(4, "little").hex())
        assert body is content or content[-4:].hex() == checksum


def test_fields_of_a_lease_are_described():
    text = section("Files beside a store")
    for field in fields(Holder):
        assert f"`{field.name}`" in text
    assert f"{SECONDS_UNTIL_EXPIRED} seconds" in text


@pytest.mark.parametrize("normalize", [None, "feature"])
def test_the_example_computes_a_score(normalize, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model = fit(store=tmp_path / "model.zarr", normalize=normalize, combine="sum")
    np.save("sample.npy", X[0])
    fxdask.batch_score(model, X[:1], tmp_path / "scored.zarr", density="exact")
    expected = zarr.open_group("scored.zarr", mode="r")["scores"][0, 0]
    (example,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    exec(compile(example, "FORMAT.md", "exec"), {})
    label, score = capsys.readouterr().out.split()
    assert int(label) == 0
    assert float(score) == pytest.approx(expected, abs=1e-5)


def test_a_store_without_its_last_file_is_unfinished(stores, tmp_path):
    """The header alone does not make a store finished."""
    copy = shutil.copytree(stores / "model.zarr", tmp_path / "model.zarr")
    (copy / "manifest" / "files" / "c" / "0").unlink()
    assert header_of(copy)["finished"]
    with pytest.raises(fxdask.errors.StoreUnfinishedError):
        fxdask.load(copy)
