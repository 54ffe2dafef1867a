"""Targets: headers, metadata, values, manifests and marks of models, scores and rankings."""

import contextlib
import io
import json
import os
import re
import shutil

import click
import google_crc32c
import numpy as np
from small import unfinish

import fxdask
from fxdask import FisherNetworkClassifier
from fxdask.cli.info import info
from fxdask.cli.verify import verify
from fxdask.sizes import NodeBlock
from fxdask.store.lease import SECONDS_UNTIL_EXPIRED, exclusive_lease
from fxdask.store.model import ModelStore
from fxdask.store.ranking import RankingStore
from fxdask.store.scores import ScoreStore
from fxdask.workflows import fit as fit_workflow
from fxdask.workflows import persistence

from .engine import Target

RNG = np.random.default_rng(0)
X = RNG.standard_normal((12, 3)).astype(np.float32)
X[::2] *= 3
Y = np.array(["ash", "oak"])[np.arange(12) % 2]
N_NODES = 8
MANIFEST = "manifest/files"
CHUNK = f"{MANIFEST}/c/0"


def run_command(command, *arguments):
    """Run one command as the program does, with its output encoded as for a terminal -> its exit status."""
    with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), "utf-8")), contextlib.redirect_stderr(io.StringIO()):
        try:
            return command.main([str(word) for word in arguments], standalone_mode=False)
        except click.exceptions.Exit as exited:
            return exited.exit_code


def classifier(store, **parameters):
    """A classifier of few nodes, each block of which is one chunk."""
    settings = {"n_nodes": N_NODES, "n_selected": 2, "nodes_per_block": 4}
    settings |= {} if store is None else {"keep_projections": "all"}
    return FisherNetworkClassifier(**settings | parameters, store=store)


def checked(content):
    """A chunk as Zarr writes it, with its checksum."""
    return content + google_crc32c.value(content).to_bytes(4, "little")


def facts_of(name, content):
    """Length and checksum of a file as a manifest has them."""
    is_chunk = not name.endswith("zarr.json")
    checksum = content[-4:] if is_chunk else google_crc32c.value(content).to_bytes(4, "little")
    return [len(content), checksum.hex()]


class StoreTarget(Target):
    """Files of stores, of which a finished one gets a manifest that matches the changed file."""

    def feed(self, place, content):
        store, _, name = place.partition("/")
        chunk = self.folder / store / CHUNK
        if not chunk.exists() or name.startswith(MANIFEST):
            super().feed(place, content)
            return
        before = chunk.read_bytes()
        files = json.loads(before[:-4]) | {name: facts_of(name, content)}
        text = json.dumps(files).encode().ljust(len(before) - 4)
        chunk.write_bytes(checked(text))
        try:
            super().feed(place, content)
        finally:
            chunk.write_bytes(before)

    def files_of(self, store, wanted=lambda name: True):
        """(place, content) of the wanted files of a store."""
        found = sorted(file for file in (self.folder / store).rglob("*") if file.is_file())
        places = [file.relative_to(self.folder).as_posix() for file in found]
        return [(place, (self.folder / place).read_bytes()) for place in places if wanted(place)]

    def interrupted_copy(self, store, name):
        """A copy of a finished store as it was before it was finished."""
        unfinish(shutil.copytree(self.folder / store, self.folder / name))
        return name


class ModelHeaders(StoreTarget):
    """The header of a finished and of an unfinished model, with its model card."""

    def valid_files(self):
        classifier(self.folder / "model.zarr").fit(X, Y)
        classifier(self.folder / "joint.zarr", selection="joint", combine="joint", normalize="feature").fit(X, Y)
        classifier(self.folder / "tables.zarr", keep_projections="table", combine="sum").fit(X, Y)
        self.interrupted_copy("model.zarr", "begun.zarr")
        names = ("model.zarr", "joint.zarr", "tables.zarr", "begun.zarr")
        return [seed for name in names for seed in self.files_of(name, lambda place: place.count("/") == 1)]

    def read(self, place):
        run_command(info, self.folder / place.partition("/")[0], "--json")


class ModelArrays(StoreTarget):
    """Metadata and values of all arrays of finished models; the values have a matching checksum."""

    def valid_files(self):
        classifier(self.folder / "model.zarr", combine="sum").fit(X, Y)
        classifier(self.folder / "joint.zarr", selection="joint", combine="joint", normalize="feature").fit(X, Y)
        classifier(self.folder / "tables.zarr", keep_projections="table", combine="sum").fit(X, Y)
        names = ("model.zarr", "joint.zarr", "tables.zarr")
        return [
            seed
            for name in names
            for seed in self.files_of(name, lambda place: place.count("/") > 1)
            if seed[0] != CHUNK
        ]

    def feed(self, place, content):
        is_chunk = not place.endswith("zarr.json")
        super().feed(place, checked(content[:-4]) if is_chunk else content)

    def read(self, place):
        store, _, name = place.partition("/")
        opened = ModelStore.open(str(self.folder / store))
        array = re.sub(r"(/zarr.json|/c(/[0-9]+)*)$", "", name)
        if array in ModelStore.specs and array in opened:
            opened.read(array)


class ScoresAndRankings(StoreTarget):
    """Headers and metadata of scores and rankings, finished or not."""

    def valid_files(self):
        model = classifier(None).fit(X, Y)
        fxdask.batch_score(model, X, self.folder / "scores.zarr", likelihood=True)
        fxdask.rank_features(X, Y, criteria=["fisher"], store=self.folder / "ranking.zarr")
        names = ["scores.zarr", "ranking.zarr"]
        names += [self.interrupted_copy(name, f"begun-{name}") for name in names]
        return [seed for name in names for seed in self.files_of(name, lambda place: place.endswith("zarr.json"))]

    def read(self, place):
        run_command(info, self.folder / place.partition("/")[0])


class Manifests(StoreTarget):
    """The manifest of a finished store, its metadata, and files that do not match it."""

    def valid_files(self):
        fxdask.rank_features(X, Y, criteria=["fisher"], store=self.folder / "ranking.zarr")
        return [(place, without_checksum(place, content)) for place, content in self.files_of("ranking.zarr")]

    def feed(self, place, content):
        if place.endswith(CHUNK):
            content = checked(content.ljust((self.folder / place).stat().st_size - 4))
        with self.changed_file(place, content):
            run_command(verify, self.folder / "ranking.zarr", "--json")


def without_checksum(place, content):
    """The text of a manifest, or any other file as it is."""
    return content[:-4].rstrip() if place.endswith(CHUNK) else content


class Marks(StoreTarget):
    """Marks and chunks of unfinished models, scores and rankings, as a call that resumes them reads them."""

    def valid_files(self):
        model = classifier(self.folder / "model.zarr").fit(X, Y)
        fxdask.batch_score(model, X, self.folder / "scores.zarr", likelihood=True)
        fxdask.rank_features(X, Y, criteria=["fisher"], store=self.folder / "ranking.zarr")
        for name in ("model.zarr", "scores.zarr", "ranking.zarr"):
            unfinish(self.folder / name)
        staged = RankingStore.open(str(self.folder / "ranking.zarr"), "r+", finished=False)
        staged.prepare_staging(12, 6, X.dtype)
        staged.write_range(0, [X[:6].T.copy()])
        wanted = ("blocks_done", "results", "staged", "scores", "labels", "log_likelihood", "statistics", "projections")
        names = ("model.zarr", "scores.zarr", "ranking.zarr")
        return [
            seed
            for name in names
            for seed in self.files_of(name, lambda place: any(f"/{part}/" in place for part in wanted))
        ]

    def feed(self, place, content):
        is_chunk = not place.endswith("zarr.json") and len(content) % 2
        super().feed(place, checked(content[:-4]) if is_chunk else content)

    def read(self, place):
        kind = place.partition(".")[0]
        getattr(self, f"read_{kind}")(str(self.folder / f"{kind}.zarr"))

    def read_model(self, url):
        store = ModelStore.open(url, "r+", finished=False)
        store.blocks_done()
        for index in range(2):
            store.is_done(NodeBlock(index, 4 * index, 4 * index + 4))

    def read_scores(self, url):
        store = ScoreStore.open(url, "r+", finished=False)
        store.n_done()
        store.read_done(0, np.array(["ash", "oak"]))
        store.read_likelihood(0)

    def read_ranking(self, url):
        store = RankingStore.open(url, "r+", finished=False)
        store.n_done()
        store.read_done(NodeBlock(0, 0, 3))
        store.has_range(0)
        store.n_ranges_done()


class ResumedModels(StoreTarget):
    """The header and the metadata of an unfinished model at the path of a new fit."""

    def valid_files(self):
        model = self.folder / "model.zarr"
        self.requests = []
        with recorded_requests(self.requests):
            classifier(model).fit(X, Y)
        unfinish(model)
        wanted = ("/zarr.json", "blocks_done/zarr.json", "canaries/zarr.json", "canaries/c/0/0")
        return self.files_of(
            "model.zarr", lambda place: place.removeprefix("model.zarr") in wanted or place.endswith(wanted[1:])
        )

    def read(self, place):
        url = str(self.folder / "model.zarr")
        header = persistence.peek_header(url)
        if header is not None:
            store = persistence.open_or_create(url, header, self.requests[0])
            store.blocks_done()
            persistence.stored_seed(url)


@contextlib.contextmanager
def recorded_requests(requests):
    """Collect what the fits of a ``with`` block request of their stores."""
    original = fit_workflow.open_or_create

    def recording(url, header, request):
        requests.append(request)
        return original(url, header, request)

    fit_workflow.open_or_create = recording
    try:
        yield
    finally:
        fit_workflow.open_or_create = original


class Leases(Target):
    """The lease of another call, new or expired."""

    def valid_files(self):
        self.store = self.folder / "model.zarr"
        with exclusive_lease(str(self.store)):
            place = ".model.zarr.lease"
            holder = json.loads((self.folder / place).read_bytes())
        return [(place, json.dumps(holder | {"process_started": 0.0}).encode())]  # of a process that has ended

    def feed(self, place, content):
        file = self.folder / place
        file.write_bytes(content)
        if len(content) % 2:
            os.utime(file, (0, 2 * SECONDS_UNTIL_EXPIRED))
        try:
            with exclusive_lease(str(self.store)):
                pass
        finally:
            file.unlink(missing_ok=True)
