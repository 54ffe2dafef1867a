"""Forty small samples, a quick fit of them, and helpers that change samples and stores."""

import numpy as np
import zarr

from fxdask import FisherNetworkClassifier
from fxdask.store.manifest import write_manifest

X = np.random.default_rng(0).standard_normal((40, 4))
Y = np.arange(40) % 2


def with_value(value, row=31, column=2):
    changed = X.copy()
    changed[row, column] = value
    return changed


def fit(X=X, y=Y, **parameters):
    return FisherNetworkClassifier(**{"n_nodes": 50, "n_selected": 3, **parameters}).fit(X, y)


def one_sentence(error):
    text = str(error.value)
    assert "\n" not in text
    return text


def rewrite_manifest(store):
    """Write a new manifest that matches an edited store."""
    write_manifest(zarr.open_group(store))


def unfinish(store):
    """Turn a finished store into one that was interrupted just before it was finished."""
    opened = zarr.open_group(store)
    opened.attrs["fxdask"] = {**opened.attrs["fxdask"], "finished": False}
    if "manifest" in opened:
        del opened["manifest"]


def chunk_files(store):
    """Path -> content of every chunk of a store; two stores of one plan must have the same."""
    return {
        str(path.relative_to(store)): path.read_bytes()
        for path in sorted(store.rglob("*"))
        if path.is_file() and path.name != "zarr.json"
    }
