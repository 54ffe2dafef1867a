"""The networks that the experiment compares: by criterion, by the rule that combines densities, by the selection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fxdask.errors import InvalidInputError
from fxdask.kernels.combination.table import COMBINATIONS
from fxdask.workflows.settings import SELECTIONS, check_name

__all__ = [
    "PAPERS_CHOICES",
    "PAPERS_PROJECTION",
    "PAPERS_VARIANTS",
    "Variant",
    "checked_rules",
    "checked_selections",
    "compared_variants",
    "variants_of",
]

PAPERS_RULE, PAPERS_SELECTION, PAPERS_PROJECTION = "sum", "top", "gaussian"
PAPERS_CHOICES: Mapping[str, list[str]] = {"rules": [PAPERS_RULE], "selections": [PAPERS_SELECTION]}
"""The rules and selections of an experiment whose identity does not name any."""


@dataclass(frozen=True)
class Variant:
    """One kind of network: how nodes are ranked, how densities are combined, and how nodes are selected."""

    criterion: str
    rule: str = PAPERS_RULE
    selection: str = PAPERS_SELECTION

    @property
    def is_papers(self) -> bool:
        """Whether the paper has this network."""
        return (self.rule, self.selection) == (PAPERS_RULE, PAPERS_SELECTION)

    @property
    def name(self) -> str:
        """The name in results: "fisher" for the paper's own, else criterion, rule and selection: "fisher log top"."""
        return self.criterion if self.is_papers else f"{self.criterion} {self.rule} {self.selection}"


def compared_variants(rules: Sequence[str], selections: Sequence[str]) -> tuple[Variant, ...]:
    """All rules and selections with the extended criterion, then all rules with Fisher's and the best nodes."""
    extended = (Variant("extended_fisher", rule, selection) for selection in selections for rule in rules)
    return (*extended, *(Variant("fisher", rule) for rule in rules))


PAPERS_VARIANTS = compared_variants([PAPERS_RULE], [PAPERS_SELECTION])


def variants_of(identity: Mapping[str, Any]) -> tuple[Variant, ...]:
    """The variants of an experiment, from the identity of its results."""
    choices = {**PAPERS_CHOICES, **identity}
    return compared_variants(choices["rules"], choices["selections"])


def checked_rules(rules: Any) -> tuple[str, ...]:
    """One rule or several -> these and the paper's, in the order of the table of rules."""
    return _checked_names("rules", rules, COMBINATIONS, PAPERS_RULE)


def checked_selections(selections: Any) -> tuple[str, ...]:
    """One selection or several -> these and the paper's, the paper's first."""
    return _checked_names("selections", selections, SELECTIONS, PAPERS_SELECTION)


def _checked_names(parameter: str, names: Any, known: Iterable[str], own: str) -> tuple[str, ...]:
    """Refuse unknown names; the order and repetitions of the names make no difference."""
    known = tuple(known)
    try:
        found = [names] if isinstance(names, str) else list(names)
    except TypeError:
        found = []
    if not found:
        raise InvalidInputError(f"{parameter} must be one or more of {', '.join(map(repr, known))}, not {names!r}")
    for name in found:
        check_name(parameter, name, known)
    return tuple(name for name in known if name in found or name == own)
