"""Train and run a random-projection, kernel-density classifier on data larger than memory, with Dask and Zarr."""

from importlib import import_module
from importlib.metadata import version
from typing import Any

from fxdask.errors import MemoryPlanError
from fxdask.estimators.classifier import FisherNetworkClassifier
from fxdask.estimators.loading import load
from fxdask.estimators.reporting import report
from fxdask.estimators.scoring import batch_score
from fxdask.execution.connection import connected
from fxdask.kernels.criteria.table import CRITERIA
from fxdask.planning.fit_plan import FitPlan
from fxdask.workflows.evaluate import Evaluation
from fxdask.workflows.score import BatchScores

__all__ = [
    "CRITERIA",
    "BatchScores",
    "Evaluation",
    "FisherNetworkClassifier",
    "FitPlan",
    "MemoryPlanError",
    "Reproduction",
    "__version__",
    "batch_score",
    "connected",
    "load",
    "report",
    "reproduce",
]

__version__ = version("fxdask")


def __getattr__(name: str) -> Any:
    """Import the experiment on first use, because it loads matplotlib, which other calls and workers do not need."""
    if name in ("Reproduction", "reproduce"):
        return getattr(import_module("fxdask.experiment.reproduce"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
