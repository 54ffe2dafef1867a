"""The experiment's results: counts by pair and seed, statistics of them, and the results files."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student_t

from fxdask.errors import StoreExistsError, StoreFormatError
from fxdask.experiment.variants import PAPERS_CHOICES, PAPERS_PROJECTION, PAPERS_VARIANTS, Variant, variants_of
from fxdask.store.files import write_atomically

__all__ = [
    "CRITERIA_COMPARED",
    "Pair",
    "Published",
    "Results",
    "ResultsFile",
    "WorkByProcess",
    "merged_work",
    "published_figures",
]

Pair = tuple[int, int]

CRITERIA_COMPARED = ("extended_fisher", "fisher")
CONFIDENCE = 0.95
MOST_SAMPLES = 2**53
FORMAT = 1


@dataclass(frozen=True)
class Published:
    """The paper's figures in percent, by criterion and pair: the mean, and half the width of its 95% interval."""

    mean: Mapping[str, Mapping[Pair, float]]
    interval: Mapping[str, Mapping[Pair, float]]


def published_figures(dataset: str) -> Published | None:
    """The paper's figures for a data set; None if it has none."""
    file = files("fxdask.experiment") / "published" / f"{dataset}.csv"
    if not file.is_file():
        return None
    rows = list(csv.DictReader(StringIO(file.read_text(encoding="utf-8"))))
    columns = {"extended_fisher": "extended", "fisher": "fisher"}

    def column(ending: str) -> dict[str, dict[Pair, float]]:
        return {
            name: {(int(row["class_a"]), int(row["class_b"])): float(row[f"{word}_{ending}"]) for row in rows}
            for name, word in columns.items()
        }

    return Published(column("accuracy"), column("ci95"))


@dataclass(frozen=True, kw_only=True)
class Results:
    """Accuracies of all variants over pairs of classes and seeds.

    A variant's name is its criterion if its rule and selection are the paper's, else its criterion,
    rule and selection, such as "extended_fisher joint top".
    """

    identity: Mapping[str, Any]
    """Everything that the counts depend on: data and parameters."""
    pairs: list[Pair]
    seeds: list[int]
    correct: Mapping[str, NDArray[np.int64]]
    """By variant, (pair, seed) number of correctly labelled test samples."""
    tested: NDArray[np.int64]
    """(pair,) number of test samples."""
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The networks that were compared; the paper's two are always among them."""
        return variants_of(self.identity)

    @property
    def is_beyond_the_paper(self) -> bool:
        """Whether there are other variants than the paper's two."""
        return self.variants != PAPERS_VARIANTS

    @property
    def accuracy(self) -> dict[str, NDArray[np.float64]]:
        """By variant, (pair, seed) percentage of correctly labelled test samples."""
        return {name: 100 * counts / self.tested[:, None] for name, counts in self.correct.items()}

    def mean(self, variant: str) -> NDArray[np.float64]:
        """(pair,) mean accuracy over the seeds."""
        return self.accuracy[variant].mean(axis=1)

    def interval(self, variant: str) -> NDArray[np.float64]:
        """(pair,) half the width of the mean's 95% interval, by Student's t; NaN for one seed."""
        return _half_width(self.accuracy[variant])

    @property
    def published(self) -> Published | None:
        """The paper's figures; None if this experiment differs from the paper's in data, network size or shift."""
        usual = {"n_nodes": 10_000, "n_selected": 10, "mean_shift": True}
        if any(self.identity[name] != value for name, value in usual.items()):
            return None
        return published_figures(str(self.identity["dataset"]))

    def published_mean(self, criterion: str) -> NDArray[np.float64] | None:
        """(pair,) the paper's figures for these pairs."""
        published = self.published
        return None if published is None else np.array([published.mean[criterion][pair] for pair in self.pairs])

    def summary(self) -> list[dict[str, Any]]:
        """For each criterion the average over the pairs, and the differences from the paper's figures."""
        rows = []
        for criterion in CRITERIA_COMPARED:
            mean, theirs = self.mean(criterion), self.published_mean(criterion)
            row: dict[str, Any] = {"criterion": criterion, "average": float(mean.mean())}
            if theirs is not None:
                row["paper"] = float(theirs.mean())
                row["difference"] = float(mean.mean() - theirs.mean())
                row["mean_absolute_difference"] = float(np.abs(mean - theirs).mean())
            rows.append(row)
        return rows

    def comparison(self) -> list[dict[str, Any]]:
        """For each variant the average over the pairs, its 95% interval over the seeds, and the gain.

        The gain is over the paper's rule and selection with the same criterion.
        """
        rows: list[dict[str, Any]] = []
        for variant in self.variants:
            accuracy = self.accuracy[variant.name]
            interval = float(_half_width(accuracy.mean(axis=0)[None])[0])
            row = {"criterion": variant.criterion, "rule": variant.rule, "selection": variant.selection}
            rows.append(
                row
                | {
                    "average": float(accuracy.mean()),
                    "interval": interval if np.isfinite(interval) else None,
                    "gain": float(accuracy.mean() - self.accuracy[variant.criterion].mean()),
                }
            )
        return rows

    def table(self) -> list[dict[str, Any]]:
        """One row per pair: mean and interval of all variants, the gain, and the paper's figures."""
        rows: list[dict[str, Any]] = []
        for i, (a, b) in enumerate(self.pairs):
            row: dict[str, Any] = {"pair": f"{a}-{b}", "tested": int(self.tested[i])}
            for variant in self.variants:
                name = variant.name
                row[name] = float(self.mean(name)[i])
                interval = float(self.interval(name)[i])
                row[f"{name}_interval"] = interval if np.isfinite(interval) else None
                theirs = self.published_mean(name) if variant.is_papers else None
                if theirs is not None:
                    row[f"{name}_paper"] = float(theirs[i])
            row["gain"] = row["extended_fisher"] - row["fisher"]
            rows.append(row)
        return rows


def _half_width(accuracy: NDArray[np.float64]) -> NDArray[np.float64]:
    """(row, seed) accuracies -> (row,) half the width of the 95% interval of each mean; NaN for one seed."""
    n_seeds = accuracy.shape[1]
    if n_seeds < 2:
        return np.full(len(accuracy), np.nan)
    return student_t.ppf((1 + CONFIDENCE) / 2, n_seeds - 1) * accuracy.std(axis=1, ddof=1) / np.sqrt(n_seeds)


class ResultsFile:
    """The file of all counts: it grows by whole seeds, so that the same call can resume from it.

    Results of another experiment are refused, or dropped with ``overwrite``, and then ``replaced`` is True.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any], *, overwrite: bool = False) -> None:
        self.path = path
        self.identity = json.loads(json.dumps(identity))
        stored = self._stored()
        other = self._differences(stored)
        self.replaced = bool(other)
        if other and not overwrite:
            raise StoreExistsError(
                f"{path} holds results of {', '.join(other)}; "
                "choose another folder, or pass overwrite=True to replace them"
            )
        self._seeds: dict[str, Any] = {} if other else stored.get("seeds", {})
        self._facts: dict[str, Any] = {} if other else stored.get("facts", {})

    def _stored(self) -> dict[str, Any]:
        """The checked content of the file; any other file is refused, so that it is never overwritten."""
        if not self.path.exists():
            return {}
        try:
            stored = json.loads(self.path.read_text(encoding="utf-8"))
            if not isinstance(stored["identity"], dict) or not isinstance(stored["facts"], dict):
                raise ValueError("no identity or facts")
            names = [variant.name for variant in variants_of(stored["identity"])]
            for seed, of_seed in stored["seeds"].items():
                _check_counts(int(seed), of_seed, names)
            _check_tested(stored["seeds"])
            version = stored["format"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise StoreFormatError(
                f"{self.path} is damaged or not a results file ({error}); move it away, or choose another folder"
            ) from error
        if type(version) is not int or version != FORMAT:
            raise StoreFormatError(
                f"{self.path} has format {version!r} but this fxdask reads {FORMAT}; choose another folder"
            )
        return stored

    def _differences(self, stored: Mapping[str, Any]) -> list[str]:
        """Texts of all differences between the identity of the stored results and this one."""
        unnamed = {**PAPERS_CHOICES, "projection": PAPERS_PROJECTION}
        wanted, found = ({**unnamed, **identity} for identity in (self.identity, stored.get("identity", self.identity)))
        if found["selections"] != wanted["selections"]:
            wanted.pop("pool_size", None)  # it belongs to the selections, which are named
        if found["projection"] != wanted["projection"]:
            del wanted["weight_scheme"], wanted["streams"]  # they belong to the projection
        named = {
            "data": "other images",
            "streams": "another NumPy's random numbers",
            "zero_tolerance": "another rule for spreads that count as zero",
        }
        return [
            named.get(key) or f"{key}={found.get(key)!r} instead of {value!r}"
            for key, value in wanted.items()
            if found.get(key) != value
        ]

    def missing(self, seed: int, pairs: Iterable[Pair]) -> list[Pair]:
        """The pairs that have no counts for this seed yet."""
        done = self._seeds.get(str(seed), {}).get("pairs", {})
        return [pair for pair in pairs if _key(pair) not in done]

    def add(self, seed: int, counts: Mapping[Pair, Mapping[str, Any]], seconds: float, work: WorkByProcess) -> None:
        """Add the counts of one seed, its seconds and its counters by process, and save the file."""
        of_seed = self._seeds.setdefault(str(seed), {"seconds": 0.0, "processes": {}, "pairs": {}})
        of_seed["seconds"] += seconds
        of_seed["processes"] = merged_work([of_seed["processes"], work])
        of_seed["pairs"].update({_key(pair): dict(count) for pair, count in counts.items()})
        self.save()

    def save(self, facts: Mapping[str, Any] | None = None) -> None:
        """Write the file atomically."""
        self._facts = self._facts if facts is None else dict(facts)
        content = {"format": FORMAT, "identity": self.identity, "facts": self._facts, "seeds": self._seeds}
        write_atomically(self.path, json.dumps(content, indent=1, default=str) + "\n")

    def results(self, pairs: Sequence[Pair], seeds: Sequence[int]) -> Results:
        """The results of these pairs and seeds, all of which must be present."""
        counts = [[self._seeds[str(seed)]["pairs"][_key(pair)] for seed in seeds] for pair in pairs]
        correct = {
            name: np.array([[count["correct"][name] for count in row] for row in counts], dtype=np.int64)
            for name in (variant.name for variant in variants_of(self.identity))
        }
        tested = np.array([row[0]["tested"] for row in counts], dtype=np.int64)
        facts = {
            **self._facts,
            "seconds_of_all_seeds": sum(self._seeds[str(seed)]["seconds"] for seed in seeds),
            "processes": merged_work(self._seeds[str(seed)]["processes"] for seed in seeds),
            "fallbacks": sum(count["fallbacks"] for row in counts for count in row),
        }
        return Results(
            identity=self.identity,
            pairs=list(pairs),
            seeds=list(seeds),
            correct=correct,
            tested=tested,
            facts=facts,
        )

    def write_csv(self, path: Path) -> None:
        """Write all counts as CSV, one row per pair, seed and variant.

        Rule and selection have columns only if there are others than the paper's.
        """
        text = StringIO()
        writer = csv.writer(text, lineterminator="\n")
        variants = variants_of(self.identity)
        is_beyond = variants != PAPERS_VARIANTS
        kind = ["criterion", "rule", "selection"] if is_beyond else ["criterion"]
        writer.writerow(["class_a", "class_b", "seed", *kind, "correct", "tested", "accuracy"])
        for seed in sorted(self._seeds, key=int):
            for pair, count in sorted(self._seeds[seed]["pairs"].items()):
                for variant in variants:
                    correct, tested = count["correct"][variant.name], count["tested"]
                    words = [getattr(variant, name) for name in kind]
                    row = [*pair.split("-"), seed, *words, correct, tested, f"{100 * correct / tested:.4f}"]
                    writer.writerow(row)
        write_atomically(path, text.getvalue())


def _check_counts(seed: int, of_seed: Mapping[str, Any], names: Sequence[str]) -> None:
    """Refuse counts of these variants that no experiment can give."""
    merged_work([of_seed["processes"]])
    if not of_seed["seconds"] >= 0:
        raise ValueError(f"seed {seed} took {of_seed['seconds']} seconds")
    for pair, count in of_seed["pairs"].items():
        for name in names:
            numbers = [count["correct"][name], count["tested"], count["fallbacks"]]
            is_possible = all(type(number) is int and 0 <= number <= MOST_SAMPLES for number in numbers)
            if not is_possible or not numbers[0] <= numbers[1] > 0:
                raise ValueError(f"impossible counts of pair {pair}, seed {seed}")


def _check_tested(seeds: Mapping[str, Any]) -> None:
    """Refuse a pair whose number of test samples differs between seeds."""
    tested: dict[str, int] = {}
    for of_seed in seeds.values():
        for pair, count in of_seed["pairs"].items():
            if tested.setdefault(pair, count["tested"]) != count["tested"]:
                raise ValueError(f"pair {pair} has {count['tested']} and {tested[pair]} test samples")


WorkByProcess = Mapping[str, Mapping[str, int]]
"""Number of blocks and pairs, and peak memory, by process."""


def merged_work(parts: Iterable[WorkByProcess]) -> dict[str, dict[str, int]]:
    """Sum the counters of each process, and take the maximum of its peak memory."""
    found: dict[str, dict[str, int]] = {}
    for part in parts:
        for process, work in part.items():
            total = found.setdefault(process, {"blocks": 0, "pairs": 0, "peak_bytes": 0})
            total["blocks"] += work["blocks"]
            total["pairs"] += work["pairs"]
            total["peak_bytes"] = max(total["peak_bytes"], work["peak_bytes"])
    return found


def _key(pair: Pair) -> str:
    return f"{pair[0]}-{pair[1]}"
