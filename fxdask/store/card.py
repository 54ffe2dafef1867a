"""The model card of a finished store: what made it, from what, and how well it does, as JSON that anybody can read."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

__all__ = ["CARD", "model_card"]

CARD = "model_card"
PACKAGES = ("fxdask", "numpy", "scipy", "zarr", "dask", "distributed", "scikit-learn")
OF_THE_DATA = ("samples", "samples_dtype", "labels")
NO_PARAMETERS = (*OF_THE_DATA, "weight_scheme", "tile", "zero_tolerance")


def model_card(header: Mapping[str, Any]) -> dict[str, Any]:
    """The header of a finished store -> its card. It has no time, so that equal calls write equal bytes."""
    identity = header.get("identity") or {}
    data = {name: identity[name] for name in OF_THE_DATA if name in identity}
    sizes = header.get("sizes") or {}
    counts = {"n_samples": header.get("n_samples", sizes.get("sample")), "n_features": sizes.get("input")}
    return {
        "kind": header["kind"],
        "versions": _versions(),
        "parameters": {name: value for name, value in identity.items() if name not in NO_PARAMETERS},
        "data": data | {name: count for name, count in counts.items() if count is not None},
        "job": header.get("job"),
        "model": header.get("model"),
        "accuracy": header.get("accuracy"),
    }


@cache
def _versions() -> dict[str, str]:
    """Looked up once, because the metadata of packages are parsed again for every question."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
