"""Fitted classifiers back from their stores."""

from __future__ import annotations

from pathlib import Path

from fxdask.errors import StoreFormatError
from fxdask.fitted import load_model
from fxdask.network import FisherNetworkClassifier
from fxdask.parameters import checked_settings
from fxdask.store.place import store_url

__all__ = ["load"]


def load(store: str | Path) -> FisherNetworkClassifier:
    """A fitted classifier back from its store.

    Parameters
    ----------
    store : path or URL
        What was passed to ``FisherNetworkClassifier(store=...)``, or a copy of it.

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
    classifier = FisherNetworkClassifier(
        settings.n_nodes,
        settings.n_selected,
        criterion=settings.criterion,
        location=settings.location,
        spread=settings.spread,
        bandwidth=settings.bandwidth,
        bandwidth_spread=settings.bandwidth_spread,
        priors=priors,
        combine=settings.combine,
        density=settings.density,
        normalize=settings.normalize,
        store=str(store),
        keep_projections=settings.keep_projections,
        keep_weights=settings.keep_weights,
        nodes_per_block=model.job.plan.nodes_per_block,
        random_state=settings.seed,
    )
    try:
        checked_settings(classifier, None)
    except ValueError as error:
        raise StoreFormatError(f"{store} is damaged: its header makes no sense ({error})") from error
    return classifier._adopt(model)
