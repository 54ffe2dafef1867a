"""Forty small samples, a quick fit of them, and ways to spoil both."""

import numpy as np
import zarr

from fxdask import FisherNetworkClassifier
from fxdask.store.manifest import write_manifest

X = np.random.default_rng(0).standard_normal((40, 4))
Y = np.arange(40) % 2


def with_value(value, row=31, column=2):
    spoilt = X.copy()
    spoilt[row, column] = value
    return spoilt


def fit(X=X, y=Y, **parameters):
    return FisherNetworkClassifier(**{"n_nodes": 50, "n_selected": 3, **parameters}).fit(X, y)


def one_sentence(error):
    text = str(error.value)
    assert "\n" not in text
    return text


def rewrite_manifest(store):
    """Give an edited store a manifest of what it is now, as who edits it on purpose would."""
    write_manifest(zarr.open_group(store))


def unfinish(store):
    """Make a finished store look as if it had been interrupted before its last mark."""
    opened = zarr.open_group(store)
    opened.attrs["fxdask"] = {**opened.attrs["fxdask"], "finished": False}
    if "manifest" in opened:
        del opened["manifest"]


def chunk_files(store):
    """Every chunk of a store by its name inside: what two stores of one plan must have in common."""
    return {
        str(path.relative_to(store)): path.read_bytes()
        for path in sorted(store.rglob("*"))
        if path.is_file() and path.name != "zarr.json"
    }
