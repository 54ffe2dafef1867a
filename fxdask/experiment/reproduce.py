"""``fxdask.reproduce``: the paper's experiment in one call."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fxdask.errors import ClusterError, InvalidInputError
from fxdask.estimators.classifier import FisherNetworkClassifier
from fxdask.estimators.parameters import checked_settings
from fxdask.execution.client import active_client
from fxdask.execution.resources import checked_limit
from fxdask.experiment.datasets import read_images
from fxdask.experiment.example import Example
from fxdask.experiment.report import write_page
from fxdask.experiment.results import Pair, Results
from fxdask.experiment.runner import RESULTS, Experiment, ExperimentOptions, checked_pairs, checked_seeds, run
from fxdask.experiment.variants import checked_rules, checked_selections
from fxdask.store.lease import exclusive_lease
from fxdask.workflows.settings import FitSettings

__all__ = ["Reproduction", "reproduce"]


class Reproduction:
    """Results of the experiment.

    Attributes
    ----------
    accuracy : dict of ndarray of shape (n_pairs, n_seeds)
        The percentage of correct labels, by criterion, ``"extended_fisher"`` and ``"fisher"``. Other
        rules and selections than the paper's are named with them, such as ``"fisher log top"``.
    pairs : list of (class, class)
    seeds : list of int
    results : Results
        Means, intervals, the paper's figures and tables of them.

    Examples
    --------
    >>> import fxdask
    >>> fxdask.reproduce("digits", seeds=1, pairs=[(0, 1)], n_nodes=200).pairs
    [(0, 1)]
    """

    def __init__(self, results: Results, example: Example, image_shape: tuple[int, int]) -> None:
        self.results = results
        self._example = example
        self._image_shape = image_shape

    @property
    def accuracy(self) -> dict[str, NDArray[np.float64]]:
        """By criterion, rule and selection, (pair, seed) percentage of correct labels."""
        return self.results.accuracy

    @property
    def pairs(self) -> list[Pair]:
        """The pairs of classes."""
        return self.results.pairs

    @property
    def seeds(self) -> list[int]:
        """The seeds of the weights."""
        return self.results.seeds

    def to_html(self, path: str | Path) -> None:
        """Write the report as one self-contained page; an existing report is overwritten."""
        write_page(Path(path), self.results, self._example, self._image_shape)

    def __repr__(self) -> str:
        means = {variant.name: self.results.mean(variant.name).mean() for variant in self.results.variants}
        averages = ", ".join(f"{name} {mean:.2f}%" for name, mean in means.items())
        return f"<Reproduction of {self.results.identity['dataset']}: {len(self.pairs)} pairs, {averages}>"


def reproduce(  # noqa: PLR0913 - every parameter is one of the experiment
    dataset: str = "mnist",
    data: str | Path | None = None,
    seeds: int | Sequence[int] = 10,
    pairs: Iterable[Pair] | None = None,
    n_nodes: int = 10_000,
    n_selected: int = 10,
    *,
    mean_shift: bool = True,
    projection: str = "gaussian",
    rules: str | Sequence[str] = ("sum",),
    selections: str | Sequence[str] = ("top",),
    out: str | Path | None = None,
    overwrite: bool = False,
    nodes_per_block: int | str = "auto",
    memory_limit: Any = None,
    verbose: bool = False,
) -> Reproduction:
    """Run the paper's experiment: every pair of classes, both criteria, several seeds.

    The ten classes are measured once per seed, and all pairs and both criteria share these
    statistics. Other rules and selections than the paper's can be evaluated beside it, on the same
    nodes, pairs and shifts. The experiment runs on the connected Dask cluster, or on local threads if there is
    none, with the same results.

    Parameters
    ----------
    dataset : {"mnist", "fashion_mnist", "digits"}
        "digits" are the small images of scikit-learn, for a quick try.
    data : path, optional
        Folder of the IDX files. If not given, scikit-learn downloads and caches OpenML's copy.
    seeds : int or sequence of int
        Number of seeds, starting at 0; or a list of seeds.
    pairs : sequence of (class, class), optional
        All 45 if not given. A pair's results do not depend on the other pairs.
    n_nodes, n_selected : int
        Number of random nodes, and of nodes kept for each class.
    mean_shift : bool
        Whether the second class of a pair is shifted so that the means nearly coincide, as in the paper.
    projection : {"gaussian", "structured"}
        As for :class:`FisherNetworkClassifier`; the paper's is "gaussian".
    rules : sequence of {"sum", "scaled", "log", "joint"}
        How densities are combined, as ``combine`` of :class:`FisherNetworkClassifier`, for both
        criteria. The paper's rule, "sum", is always among them.
    selections : sequence of {"top", "joint"}
        How nodes are selected, for the extended criterion. The paper's selection, "top", is always
        among them; "joint" takes at most ``2 * n_selected`` nodes that both classes share.
    out : path, optional
        Folder for ``results.json``, ``results.csv`` and ``example.npz``. The same call resumes an
        interrupted one, and more seeds or pairs are added to the existing results. A cluster needs a
        folder that all workers can reach; otherwise a temporary folder is used.
    overwrite : bool
        Delete results of other data or parameters in ``out``. Results of the same experiment are
        kept and extended, because computing them again would give the same numbers.
    nodes_per_block, memory_limit
        As for :class:`FisherNetworkClassifier`; they change no result.
    verbose : bool
        Show a progress bar for each seed on standard error.

    Returns
    -------
    Reproduction

    Examples
    --------
    >>> import fxdask
    >>> result = fxdask.reproduce("digits", seeds=2, pairs=[(0, 1), (3, 8)], n_nodes=300)
    >>> result.accuracy["extended_fisher"].shape
    (2, 2)
    >>> joint = fxdask.reproduce("digits", seeds=1, pairs=[(3, 8)], n_nodes=300, rules=["joint"])
    >>> list(joint.accuracy)
    ['extended_fisher', 'extended_fisher joint top', 'fisher', 'fisher joint top']
    """
    chosen_seeds, chosen_pairs = checked_seeds(seeds), checked_pairs(pairs)
    chosen_rules, chosen_selections = checked_rules(rules), checked_selections(selections)
    _check_paths_and_limit(data, out, memory_limit)
    if not isinstance(mean_shift, (bool, np.bool_)):
        raise InvalidInputError(f"mean_shift must be True or False, not {mean_shift!r}")
    settings = _papers_settings(n_nodes, n_selected, nodes_per_block, projection)
    if settings.n_selected > settings.n_nodes:
        raise InvalidInputError(f"n_selected={n_selected} is more than n_nodes={n_nodes}; select fewer nodes")
    if out is None and active_client() is not None:
        raise ClusterError("a cluster is connected, so out= is needed; pass a folder that all of its workers can reach")
    images = read_images(dataset, data)
    experiment = Experiment(
        images=images,
        settings=settings,
        seeds=chosen_seeds,
        pairs=chosen_pairs,
        mean_shift=bool(mean_shift),
        rules=chosen_rules,
        selections=chosen_selections,
    )
    experiment.check()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fxdask-")) if out is None else out)
        folder = folder.resolve()  # symbolic links to one folder must give one lease
        folder.mkdir(parents=True, exist_ok=True)
        stack.enter_context(exclusive_lease(str(folder / RESULTS)))
        options = ExperimentOptions(overwrite, nodes_per_block, memory_limit, verbose)
        results, example = run(experiment, folder, options)
    return Reproduction(results, example, images.image_shape)


def _papers_settings(n_nodes: int, n_selected: int, nodes_per_block: int | str, projection: str) -> FitSettings:
    """The paper's parameters; all are written out, because the classifier's defaults may be others."""
    return checked_settings(
        FisherNetworkClassifier(
            n_nodes,
            n_selected,
            projection=projection,
            criterion="extended_fisher",
            selection="top",
            pool_size="auto",
            location="interquartile_mean",
            spread="mad",
            shrink_spread=False,
            bandwidth="silverman",
            bandwidth_spread=None,
            priors="equal",
            combine="sum",
            density="table",
            normalize="sample",
            keep_projections="selected",
            keep_weights=False,
            random_state=0,
            nodes_per_block=nodes_per_block,
        )
    )


def _check_paths_and_limit(data: Any, out: Any, memory_limit: Any) -> None:
    """Refuse invalid paths and limits before any file is read or written."""
    for name, value in (("data", data), ("out", out)):
        if value is not None and not isinstance(value, (str, Path)):
            raise InvalidInputError(f"{name} must be a path, not {value!r}")
    if out is not None and "://" in str(out):
        raise InvalidInputError(f"out must be a folder on a disk, not {out}")
    if out is not None and Path(out).exists() and not Path(out).is_dir():
        raise InvalidInputError(f"{out} is a file; pass a folder as out")
    checked_limit(memory_limit)
