"""``fxdask.rank_features``: rank the features of data of any size by several criteria."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fxdask.errors import InvalidInputError, StoreExistsError
from fxdask.estimators.parameters import checked_rank_settings
from fxdask.execution.resources import checked_limit
from fxdask.kernels.criteria.relief import N_ANCHORS, N_NEIGHBOURS
from fxdask.reporting.ranking_page import report_ranking
from fxdask.store.arrow import arrow
from fxdask.store.files import check_file_path, write_file
from fxdask.store.paths import checked_store_url
from fxdask.workflows.data import as_labels, encode_labels
from fxdask.workflows.model import TrainingData
from fxdask.workflows.persistence import stored_seed
from fxdask.workflows.rank import rank, readable_features
from fxdask.workflows.rank_request import RankOptions
from fxdask.workflows.ranked import RankedFeatures
from fxdask.workflows.settings import check_flag
from fxdask.workflows.tables import numeric_columns, with_label_column

__all__ = ["Ranking", "check_table_path", "rank_features"]

BYTES_OF_HEAD = 2000
BEST_SHOWN = 5
PARQUET_MAGIC = b"PAR1"
DEFAULT_CRITERIA = ("extended_fisher", "fisher", "pearson", "kolmogorov_smirnov")


@dataclass(frozen=True, kw_only=True, repr=False)
class Ranking(RankedFeatures):
    """Scores, ranks and p-values of every feature by every criterion.

    The score of a feature is the largest of its classes; ``scores`` has those of each class. Ranks
    begin at 1; of equal scores the lower feature comes first. A p-value tells how often features that
    do not depend on the class have such a score or a larger one: by the F test (one-way analysis of
    variance) for ``pearson``, by the two-sample Kolmogorov-Smirnov test for ``kolmogorov_smirnov``.
    With more than two classes each class is tested against the rest, and the smallest p-value is
    multiplied by the number of classes.

    Attributes
    ----------
    names : ndarray of shape (n_features,)
        Names of the features; x0, x1, ... if X has none.
    criteria : tuple of str
    scores : dict of str to ndarray of shape (n_classes, n_features) or (1, n_features)
        By criterion; larger is better.
    p_values : dict of str to ndarray
        By criterion that is a test, in the shape of its scores.
    missing : ndarray of shape (n_features,)
        Missing values of every feature, which were left out.
    n_anchors : int or None
        Samples whose neighbours ``relief`` looked for.
    store : str or None
    info : dict
        Seconds, blocks, resumed blocks, the plan; and for each process its blocks, the bytes it read and its
        peak memory.

    Examples
    --------
    >>> import numpy as np, fxdask
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.standard_normal((500, 3)), np.arange(500) % 2
    >>> X[y == 1, 2] *= 3
    >>> ranking = fxdask.rank_features(X, y, criteria=["fisher", "kolmogorov_smirnov"])
    >>> ranking.rank("kolmogorov_smirnov")
    array([3, 2, 1])
    >>> ranking.threshold("kolmogorov_smirnov", rate=0.05, rule="by") < 0.01
    True
    >>> ranking
    Ranking of 3 features by fisher, kolmogorov_smirnov over 500 samples of 2 classes; best by fisher: x1, x0, x2
    """

    def __repr__(self) -> str:
        first = self.criteria[0]
        best = ", ".join(map(str, self.names[self.order(first)[:BEST_SHOWN]]))
        return (
            f"Ranking of {len(self.names)} features by {', '.join(self.criteria)} over {self.n_samples} samples of "
            f"{len(self.classes)} classes; best by {first}: {best}"
        )

    def to_frame(self) -> Any:
        """Return the ranking as a pandas DataFrame, one row per feature.

        Its columns are ``feature``; for each criterion its score and rank, and for tests the p-value and
        the p-values adjusted by Benjamini-Hochberg (``_p_bh``) and Benjamini-Yekutieli (``_p_by``);
        ``missing``.

        Returns
        -------
        pandas.DataFrame
        """
        try:
            pandas = import_module("pandas")
        except ImportError as error:
            raise InvalidInputError(f"to_frame needs the package pandas ({error}); run pip install pandas") from error
        return pandas.DataFrame(self.table())

    def to_parquet(self, path: str | Path) -> None:
        """Write the table of :meth:`to_frame` as one Parquet file.

        Parameters
        ----------
        path : path
            The table; that of an earlier ranking is replaced, any other file is refused.
        """
        package, path = arrow(), check_table_path(path)
        table = package.table({name: _plain(values) for name, values in self.table().items()})
        with package.BufferOutputStream() as stream:
            package.parquet.write_table(table, stream)
            write_file(path, stream.getvalue().to_pybytes(), "table")

    def to_csv(self, path: str | Path) -> None:
        """Write the table of :meth:`to_frame` as comma-separated values.

        Parameters
        ----------
        path : path
            The table; that of an earlier ranking is replaced, any other file is refused.
        """
        path, text = check_table_path(path), StringIO()
        writer = csv.writer(text, lineterminator="\n")
        columns = self.table()
        writer.writerow(columns)
        writer.writerows(zip(*(values.tolist() for values in columns.values()), strict=True))
        write_file(path, text.getvalue(), "table")

    def to_html(self, path: str | Path) -> None:
        """Write one self-contained page: the best features by each criterion, agreement, densities of the best.

        Parameters
        ----------
        path : path
            The page; an earlier report is replaced, any other file is refused.
        """
        report_ranking(self, path)


def check_table_path(path: str | Path) -> Path:
    """The path of a ranking's table; refused if it cannot be written, or holds anything but such a table."""
    if not isinstance(path, (str, Path)):
        raise InvalidInputError(f"path must be the path of a file, not {path!r}")
    check_file_path(path, "table")
    path = Path(path)
    if path.exists() and path.stat().st_size and not _is_table(_heads(path)):
        raise StoreExistsError(f"{path} exists and is not the table of a ranking; choose another path")
    return path


def _is_table(heads: list[str]) -> bool:
    """Whether these are the columns of a ranking's table."""
    return len(heads) > 2 and heads[0] == "feature" and heads[-1] == "missing"


def _heads(path: Path) -> list[str]:
    """The names of a table's columns; none if the file is no table."""
    with path.open("rb") as stream:
        is_parquet = stream.read(len(PARQUET_MAGIC)) == PARQUET_MAGIC
    if is_parquet:
        package = arrow()
        try:
            return package.parquet.read_schema(path).names
        except (package.ArrowException, OSError):
            return []
    with path.open("rb") as stream:
        return stream.readline(BYTES_OF_HEAD).decode("utf-8", "replace").strip().split(",")


def _plain(values: NDArray) -> Any:
    return [str(value) for value in values] if values.dtype.kind in "OU" else values


def rank_features(  # noqa: PLR0913 - the public call
    X: Any,
    y: Any,
    criteria: Sequence[str] = DEFAULT_CRITERIA,
    *,
    store: str | Path | None = None,
    location: str = "interquartile_mean",
    spread: str = "mad",
    shrink_spread: bool = True,
    priors: str | ArrayLike = "class_share",
    missing: str = "error",
    numeric_only: bool = False,
    n_anchors: int | None = N_ANCHORS,
    n_neighbors: int = N_NEIGHBOURS,
    memory_limit: int | str | None = None,
    overwrite: bool = False,
    random_state: int | np.random.RandomState | None = 0,
    verbose: bool = False,
) -> Ranking:
    """Rank the features of data of any size by several criteria.

    Every value of a column is used, as float32 around the median of the column, so the scores are exact
    for these values, and the same for every chunking and number of workers. All criteria that need sorted
    values share one sort of each column and class. Data by rows that is larger than 64 MiB is copied by
    columns first, in one pass, into the store or into a temporary folder; columns of Parquet are read
    where they are. Criteria that need only moments of float32 values take one pass over the rows, without
    a copy. A column that does not fit into the memory of a task is read
    several times, and its values are counted instead of sorted: ``info["plan"]`` tells it. The scores have
    the same bits. For ``mutual_information`` and ``density_overlap`` it is sorted in parts that fit into
    memory, with one more pass for each part.

    The tasks run on the active Dask client, or on local threads if there is none.

    Parameters
    ----------
    X : array, DataFrame, Dask array or DataFrame, Zarr array, or path of a Zarr array, a .npy file or Parquet
        One sample per row. :func:`fxdask.table` chooses columns of Parquet.
    y : the same types, one label per sample
        If X is a DataFrame or Parquet, y may also be the name of its column that holds the labels; a column
        goes before a file of that name.
    criteria : list of str
        Names in ``fxdask.CRITERIA``.
    store : path, URL or None
        The Zarr store of the results. The same call resumes an unfinished store and loads a finished one.
    location, spread, shrink_spread, priors
        Of ``fisher`` and ``extended_fisher``, as for :class:`fxdask.FisherNetworkClassifier`; "mean" and
        "std" together need no sorting. ``priors`` also weigh the classes of ``relief``. If the sizes of the
        classes differ much, pass ``priors="equal"``: ``extended_fisher`` then finds what tells a rare class.
    missing : {"error", "omit"}
        Refuse NaN, or leave them out, column by column; they are counted in the result.
    numeric_only : bool, default=False
        Leave out columns of a table that do not hold numbers, instead of refusing them.
    n_anchors : int or None
        Samples whose neighbours ``relief`` looks for, spread over the classes by their shares; None: all
        samples, which takes a time that grows with the square of their number.
    n_neighbors : int, default=10
        Neighbours of each class that ``relief`` compares a sample with.
    memory_limit : int, str or None
        Memory that local threads may use, in bytes or as a string such as "2 GiB"; None: the free
        memory of the machine. Workers have their own limits.
    overwrite : bool, default=False
        Replace another ranking that the store holds.
    random_state : int, RandomState or None
        Seed of the noise by which ``mutual_information`` breaks ties.
    verbose : bool, default=False
        Show a progress bar on standard error. Interactive sessions show it for stages of more than 5 s anyway.

    Returns
    -------
    Ranking

    Examples
    --------
    >>> import numpy as np, fxdask
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.standard_normal((400, 4)), np.arange(400) % 2
    >>> X[y == 1, 1] *= 4  # another variance, the same mean
    >>> ranking = fxdask.rank_features(X, y, criteria=["extended_fisher", "pearson"])
    >>> int(ranking.order("extended_fisher")[0]), ranking.p_value("pearson").shape
    (1, (4,))
    """
    url = None if store is None else checked_store_url(store)
    settings = checked_rank_settings(
        {
            "criteria": criteria,
            "location": location,
            "spread": spread,
            "shrink_spread": shrink_spread,
            "priors": priors,
            "missing": missing,
            "n_anchors": n_anchors,
            "n_neighbors": n_neighbors,
            "random_state": random_state,
        },
        stored_seed(str(url)) if url and not overwrite else None,
    )
    check_flag("numeric_only", numeric_only)
    checked_limit(memory_limit)
    X, y = with_label_column(X, y)
    options = RankOptions(
        store=url,
        overwrite=overwrite,
        memory_limit=memory_limit,
        verbose=verbose,
    )
    with readable_features(numeric_columns(X) if numeric_only else X, settings, options) as samples:
        data = TrainingData(samples, *encode_labels(as_labels(y, samples.n_samples), samples.n_samples))
        found = rank(settings, data, options)
    return Ranking(**{field.name: getattr(found, field.name) for field in fields(found)})
