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
from fxdask.store.lease import exclusive_lease

__all__ = ["Reproduction", "reproduce"]


class Reproduction:
    """What came out of the experiment.

    Attributes
    ----------
    accuracy : dict of ndarray of shape (n_pairs, n_seeds)
        By criterion, ``"extended_fisher"`` and ``"fisher"``, the percentage of right labels.
    pairs : list of (class, class)
    seeds : list of int
    results : Results
        Means, intervals, the paper's figures and the tables made of them.

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
        """By criterion, (pair, seed) percent of right labels."""
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
        """Write the report, one page that needs nothing else; a report that stands there already is replaced."""
        write_page(Path(path), self.results, self._example, self._image_shape)

    def __repr__(self) -> str:
        averages = ", ".join(f"{row['criterion']} {row['average']:.2f}%" for row in self.results.summary())
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
    out: str | Path | None = None,
    overwrite: bool = False,
    nodes_per_block: int | str = "auto",
    memory_limit: Any = None,
    verbose: bool = False,
) -> Reproduction:
    """Run the paper's experiment: every pair of classes, both criteria, several seeds.

    The ten classes are measured once for each seed; all pairs and both criteria share that. It
    runs on the connected Dask cluster, or else on local threads, and gives the same numbers on
    any of them.

    Parameters
    ----------
    dataset : {"mnist", "fashion_mnist", "digits"}
        "digits" are the small ones that come with scikit-learn, to try things with.
    data : path, optional
        Folder of the IDX files. Without it, OpenML's copy by scikit-learn and its cache.
    seeds : int or sequence of int
        How many, from 0 on; or which.
    pairs : sequence of (class, class), optional
        All 45 if not given. A pair's numbers do not depend on the other pairs.
    n_nodes, n_selected : int
        Random nodes, and how many are kept for each class.
    mean_shift : bool
        Whether the second class of a pair is moved so that the means nearly coincide, as in the paper.
    out : path, optional
        Folder for ``results.json``, ``results.csv`` and ``example.npz``. The same call goes on there
        after it was stopped, and so does one with more seeds or pairs. Needed on a cluster, at a
        place that all workers reach; otherwise a temporary folder is used.
    overwrite : bool
        Begin anew where ``out`` holds results of other data or parameters; those are lost. Equal ones
        are kept and gone on with, for they would come out the same.
    nodes_per_block, memory_limit
        As for :class:`FisherNetworkClassifier`; they change no number.
    verbose : bool
        A progress bar for each seed on standard error.

    Returns
    -------
    Reproduction

    Examples
    --------
    >>> import fxdask
    >>> result = fxdask.reproduce("digits", seeds=2, pairs=[(0, 1), (3, 8)], n_nodes=300)
    >>> result.accuracy["extended_fisher"].shape
    (2, 2)
    """
    chosen_seeds, chosen_pairs = checked_seeds(seeds), checked_pairs(pairs)
    _check_place(data, out, memory_limit)
    if not isinstance(mean_shift, (bool, np.bool_)):
        raise InvalidInputError(f"mean_shift must be True or False, not {mean_shift!r}")
    settings = checked_settings(
        FisherNetworkClassifier(
            n_nodes,
            n_selected,
            priors="equal",
            normalize="sample",
            random_state=0,
            nodes_per_block=nodes_per_block,
        )
    )
    if settings.n_selected > settings.n_nodes:
        raise InvalidInputError(f"n_selected={n_selected} is more than n_nodes={n_nodes}")
    if out is None and active_client() is not None:
        raise ClusterError("a cluster is connected: name a folder that all of its workers can reach with out=")
    images = read_images(dataset, data)
    experiment = Experiment(
        images=images,
        settings=settings,
        seeds=chosen_seeds,
        pairs=chosen_pairs,
        mean_shift=bool(mean_shift),
    )
    experiment.check()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fxdask-")) if out is None else out)
        folder = folder.resolve()  # one name for one folder, whichever links lead to it
        folder.mkdir(parents=True, exist_ok=True)
        stack.enter_context(exclusive_lease(str(folder / RESULTS)))
        options = ExperimentOptions(overwrite, nodes_per_block, memory_limit, verbose)
        results, example = run(experiment, folder, options)
    return Reproduction(results, example, images.image_shape)


def _check_place(data: Any, out: Any, memory_limit: Any) -> None:
    """Refuse before anything is read or made."""
    for name, value in (("data", data), ("out", out)):
        if value is not None and not isinstance(value, (str, Path)):
            raise InvalidInputError(f"{name} must be a path, not {value!r}")
    if out is not None and "://" in str(out):
        raise InvalidInputError(f"out is a folder on a disk, not {out}")
    if out is not None and Path(out).exists() and not Path(out).is_dir():
        raise InvalidInputError(f"{out} is a file; out is a folder")
    checked_limit(memory_limit)
