"""The parameters that a ranking depends on, and their checks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from fxdask.errors import InvalidInputError
from fxdask.kernels.criteria.base import Need
from fxdask.kernels.criteria.table import CRITERIA
from fxdask.kernels.statistics import LOCATIONS, SPREADS
from fxdask.workflows.settings import check_flag, check_name, check_priors, check_whole_number

__all__ = ["MISSING", "RankSettings"]

MISSING = ("error", "omit")


@dataclass(frozen=True, kw_only=True)
class RankSettings:
    """All parameters that a ranking depends on, and no others."""

    criteria: tuple[str, ...]
    location: str
    spread: str
    shrink_spread: bool
    priors: str | tuple[float, ...]
    missing: str
    n_anchors: int | None
    n_neighbors: int
    seed: int

    @property
    def of_columns(self) -> tuple[str, ...]:
        """The criteria that are computed column by column."""
        return tuple(name for name in self.criteria if Need.ROWS not in CRITERIA[name].needs)

    @property
    def of_rows(self) -> tuple[str, ...]:
        """The criteria that compare rows: ReliefF."""
        return tuple(name for name in self.criteria if Need.ROWS in CRITERIA[name].needs)

    def identity(self) -> dict[str, Any]:
        """The parameters that the scores of these criteria depend on."""
        needs = frozenset().union(*(CRITERIA[name].needs for name in self.criteria))
        used = {
            "location": Need.LOCATION_AND_SPREAD in needs,
            "spread": Need.LOCATION_AND_SPREAD in needs,
            "shrink_spread": Need.LOCATION_AND_SPREAD in needs,
            "priors": bool(needs & {Need.LOCATION_AND_SPREAD, Need.ROWS}),
            "n_anchors": Need.ROWS in needs,
            "n_neighbors": Need.ROWS in needs,
            "seed": "mutual_information" in self.criteria,
        }
        return {name: value for name, value in asdict(self).items() if used.get(name, True)}

    def check(self) -> None:
        """Refuse values that no ranking can use, and name the allowed ones."""
        if not self.criteria:
            raise InvalidInputError(f"criteria is empty; choose some of {', '.join(CRITERIA)}")
        for criterion in self.criteria:
            check_name("criterion", criterion, CRITERIA)
        check_name("location", self.location, LOCATIONS)
        check_name("spread", self.spread, SPREADS)
        check_name("missing", self.missing, MISSING)
        check_priors(self.priors)
        check_flag("shrink_spread", self.shrink_spread)
        if self.n_anchors is not None:
            check_whole_number("n_anchors", self.n_anchors)
        check_whole_number("n_neighbors", self.n_neighbors)
