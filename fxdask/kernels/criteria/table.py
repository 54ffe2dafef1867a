"""The table of all criteria."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fxdask.kernels.criteria.base import Criterion
from fxdask.kernels.criteria.fisher import EXTENDED_FISHER, FISHER

__all__ = ["CRITERIA"]

CRITERIA: Mapping[str, Criterion] = MappingProxyType({one.name: one for one in (EXTENDED_FISHER, FISHER)})
"""All criteria by name; read-only, because a change in one process would not reach the workers."""
