"""Train and run a random-projection, kernel-density classifier on data larger than memory, with Dask and Zarr."""

from importlib import import_module
from importlib.metadata import version
from typing import Any

from fxdask.kernels.criteria import CRITERIA
from fxdask.loading import load
from fxdask.network import FisherNetworkClassifier
from fxdask.scoring import batch_score

__all__ = ["CRITERIA", "FisherNetworkClassifier", "__version__", "batch_score", "load", "reproduce"]

__version__ = version("fxdask")


def __getattr__(name: str) -> Any:
    """The experiment brings the figures' library with it, which workers and other calls do without."""
    if name == "reproduce":
        return import_module("fxdask.reproduction").reproduce
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
