"""``fxdask.reproduce``: the paper's experiment in one call."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from itertools import combinations
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fxdask import graph
from fxdask.datasets import N_CLASSES, read_images
from fxdask.errors import ClusterError, InvalidInputError
from fxdask.example import Example
from fxdask.experiment import Experiment, run
from fxdask.network import FisherNetworkClassifier
from fxdask.parameters import checked_settings
from fxdask.report import write_page
from fxdask.results import Pair, Results
from fxdask.store.group import only_one_at_a_time

__all__ = ["Reproduction", "checked_pairs", "checked_seeds", "reproduce"]


class Reproduction:
    """What came out of the experiment.

    Attributes
    ----------
    accuracy : dict of ndarray of shape (n_pairs, n_seeds)
        By criterion, ``"extended_fisher"`` and ``"fisher"``, the percentage of right labels.
    pairs : list of (class, class)
    seeds : list of int
    results : fxdask.results.Results
        Means, intervals, the paper's figures and the tables made of them.
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


def reproduce(
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
    settings = checked_settings(
        FisherNetworkClassifier(n_nodes, n_selected, priors="equal", normalize="sample", random_state=0)
    )
    if settings.n_selected > settings.n_nodes:
        raise InvalidInputError(f"n_selected={n_selected} is more than n_nodes={n_nodes}")
    if out is None and graph.active_client() is not None:
        raise ClusterError("a cluster is connected: name a folder that all of its workers can reach with out=")
    images = read_images(dataset, data)
    experiment = Experiment(images, settings, chosen_seeds, chosen_pairs, bool(mean_shift))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fxdask-")) if out is None else out)
        folder = folder.absolute()
        if folder.exists() and not folder.is_dir():
            raise InvalidInputError(f"{folder} is a file; out is a folder")
        folder.mkdir(parents=True, exist_ok=True)
        stack.enter_context(only_one_at_a_time(str(folder)))
        results, example = run(
            experiment,
            folder,
            overwrite=overwrite,
            nodes_per_block=nodes_per_block,
            memory_limit=memory_limit,
            verbose=verbose,
        )
    return Reproduction(results, example, images.image_shape)


def checked_seeds(seeds: Any) -> list[int]:
    """How many seeds, or which -> which, in the order given."""
    if isinstance(seeds, Integral) and not isinstance(seeds, bool):
        seeds = range(int(seeds))
    try:
        found = list(seeds)
    except TypeError:
        found = []
    is_whole = [isinstance(seed, Integral) and not isinstance(seed, bool) and int(seed) >= 0 for seed in found]
    if not found or not all(is_whole):
        raise InvalidInputError("seeds must be a whole number of at least 1, or whole numbers from 0 on")
    return list(dict.fromkeys(int(seed) for seed in found))


def checked_pairs(pairs: Any) -> list[Pair]:
    """Pairs of classes, or None for all -> each once, the lower class first."""
    if pairs is None:
        return list(combinations(range(N_CLASSES), 2))
    found = []
    try:
        for first, second in pairs:
            if int(first) != first or int(second) != second or first == second:
                raise ValueError("not two classes")
            if not (0 <= first < N_CLASSES and 0 <= second < N_CLASSES):
                raise ValueError("no such class")
            found.append((int(min(first, second)), int(max(first, second))))
    except (TypeError, ValueError):
        raise InvalidInputError(
            f"pairs must be pairs of two different classes from 0 to {N_CLASSES - 1}, such as [(0, 1), (3, 8)]"
        ) from None
    if not found:
        raise InvalidInputError("pairs is empty; leave it out for all pairs")
    return list(dict.fromkeys(found))
