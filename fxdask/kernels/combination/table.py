"""The table of all combination rules."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fxdask.kernels.combination.base import CombinationRule
from fxdask.kernels.combination.joint import JointRule
from fxdask.kernels.combination.log import LogRule
from fxdask.kernels.combination.scaled import ScaledRule
from fxdask.kernels.combination.sum import SumRule

__all__ = ["COMBINATIONS"]

COMBINATIONS: Mapping[str, CombinationRule] = MappingProxyType(
    {rule.name: rule for rule in (SumRule(), ScaledRule(), LogRule(), JointRule())}
)
"""All combination rules by name; read-only."""
