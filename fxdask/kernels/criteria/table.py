"""The one table of all criteria."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fxdask.kernels.criteria.base import Criterion
from fxdask.kernels.criteria.fisher import EXTENDED_FISHER, FISHER

__all__ = ["CRITERIA"]

CRITERIA: Mapping[str, Criterion] = MappingProxyType({one.name: one for one in (EXTENDED_FISHER, FISHER)})
"""Every criterion by its name; read-only, because workers have the table of their own installation."""
