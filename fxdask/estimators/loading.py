"""``fxdask.load``: a fitted classifier from its store."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from fxdask.estimators.classifier import FisherNetworkClassifier
from fxdask.store.paths import store_url
from fxdask.workflows.loading import load_model

__all__ = ["load"]


def load(store: str | Path) -> FisherNetworkClassifier:
    """Load a fitted classifier from its store.

    Parameters
    ----------
    store : path or URL
        The store that was passed to ``FisherNetworkClassifier(store=...)``, or a copy of it.

    Returns
    -------
    FisherNetworkClassifier

    Examples
    --------
    >>> import tempfile
    >>> from fxdask import FisherNetworkClassifier, load
    >>> path = tempfile.mkdtemp() + "/model.zarr"
    >>> clf = FisherNetworkClassifier(n_nodes=50, store=path).fit([[0.0], [0.1], [3.0], [3.2]], [0, 0, 1, 1])
    >>> load(path).predict([[3.1]])
    array([1])
    """
    model = load_model(store_url(store))
    settings = model.settings
    priors = settings.priors if isinstance(settings.priors, str) else list(settings.priors)
    parameters = {
        name: value for name, value in asdict(settings).items() if name not in ("seed", "priors", "normalize")
    }
    classifier = FisherNetworkClassifier(
        **parameters,
        priors=priors,
        normalize=model.normalize_requested,
        store=str(store),
        nodes_per_block=model.job.plan.nodes_per_block,
        random_state=settings.seed,
    )
    return classifier._adopt(model)
