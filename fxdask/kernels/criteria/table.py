"""The table of all criteria."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fxdask.kernels.criteria.base import Criterion
from fxdask.kernels.criteria.density_overlap import DENSITY_OVERLAP
from fxdask.kernels.criteria.fisher import EXTENDED_FISHER, FISHER
from fxdask.kernels.criteria.kolmogorov_smirnov import KOLMOGOROV_SMIRNOV
from fxdask.kernels.criteria.mutual_information import MUTUAL_INFORMATION
from fxdask.kernels.criteria.pearson import PEARSON
from fxdask.kernels.criteria.relief import RELIEF
from fxdask.kernels.criteria.volume_of_overlap import VOLUME_OF_OVERLAP

__all__ = ["CRITERIA"]

CRITERIA: Mapping[str, Criterion] = MappingProxyType(
    {
        one.name: one
        for one in (
            EXTENDED_FISHER,
            FISHER,
            PEARSON,
            KOLMOGOROV_SMIRNOV,
            MUTUAL_INFORMATION,
            VOLUME_OF_OVERLAP,
            DENSITY_OVERLAP,
            RELIEF,
        )
    }
)
"""All criteria by name; read-only, because a change in one process would not reach the workers."""
