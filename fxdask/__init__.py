"""Train and run a random-projection, kernel-density classifier on data larger than memory, with Dask and Zarr."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fxdask.errors import MemoryPlanError

if TYPE_CHECKING:
    from fxdask.estimators.classifier import FisherNetworkClassifier
    from fxdask.estimators.loading import load
    from fxdask.estimators.ranking import Ranking, rank_features
    from fxdask.estimators.reporting import report
    from fxdask.estimators.scoring import batch_score
    from fxdask.estimators.selector import FilterSelector
    from fxdask.execution.connection import connected
    from fxdask.experiment.reproduce import Reproduction, reproduce
    from fxdask.kernels.criteria.table import CRITERIA
    from fxdask.planning.fit_plan import FitPlan
    from fxdask.planning.machine import ClusterShape
    from fxdask.workflows.evaluate import Evaluation
    from fxdask.workflows.score import BatchScores
    from fxdask.workflows.tables import table

__all__ = [
    "CRITERIA",
    "BatchScores",
    "ClusterShape",
    "Evaluation",
    "FilterSelector",
    "FisherNetworkClassifier",
    "FitPlan",
    "MemoryPlanError",
    "Ranking",
    "Reproduction",
    "__version__",
    "batch_score",
    "connected",
    "load",
    "rank_features",
    "report",
    "reproduce",
    "table",
]

_MODULES = {
    "CRITERIA": "fxdask.kernels.criteria.table",
    "BatchScores": "fxdask.workflows.score",
    "ClusterShape": "fxdask.planning.machine",
    "Evaluation": "fxdask.workflows.evaluate",
    "FilterSelector": "fxdask.estimators.selector",
    "FisherNetworkClassifier": "fxdask.estimators.classifier",
    "FitPlan": "fxdask.planning.fit_plan",
    "Ranking": "fxdask.estimators.ranking",
    "Reproduction": "fxdask.experiment.reproduce",
    "batch_score": "fxdask.estimators.scoring",
    "connected": "fxdask.execution.connection",
    "load": "fxdask.estimators.loading",
    "rank_features": "fxdask.estimators.ranking",
    "report": "fxdask.estimators.reporting",
    "reproduce": "fxdask.experiment.reproduce",
    "table": "fxdask.workflows.tables",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use: a worker then loads only what its tasks need, without scikit-learn."""
    if name == "__version__":
        value: Any = version("fxdask")
    elif name in _MODULES:
        value = getattr(import_module(_MODULES[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
