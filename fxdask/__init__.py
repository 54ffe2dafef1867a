"""Train and run a random-projection, kernel-density classifier on data larger than memory, with Dask and Zarr."""

from importlib.metadata import version

from fxdask.kernels.criteria import CRITERIA
from fxdask.loading import load
from fxdask.network import FisherNetworkClassifier
from fxdask.scoring import batch_score

__all__ = ["CRITERIA", "FisherNetworkClassifier", "__version__", "batch_score", "load"]

__version__ = version("fxdask")
