"""Every exception and warning that fxdask raises of its own accord."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

__all__ = [
    "ClusterError",
    "DataUnavailableError",
    "DiskSpaceError",
    "FewUsableNodesWarning",
    "FxdaskError",
    "InvalidInputError",
    "MemoryPlanError",
    "StoreExistsError",
    "StoreFormatError",
    "StoreReadError",
    "StoreUnfinishedError",
    "StoreWriteError",
    "VersionMismatchWarning",
    "WeightStreamError",
    "ZeroSpreadWarning",
    "warn_user",
]


class FxdaskError(Exception):
    """Base of every error that fxdask raises on purpose."""


class InvalidInputError(FxdaskError, ValueError):
    """Samples, labels or parameters that no model can be made from."""


class StoreExistsError(FxdaskError, FileExistsError):
    """The store holds something else than what this call would write."""


class StoreFormatError(FxdaskError, ValueError):
    """The folder is no fxdask store, or one of a format this version cannot read."""


class StoreUnfinishedError(FxdaskError):
    """The store was begun but never finished."""


class StoreReadError(FxdaskError, OSError):
    """A store could not be read, though nothing says that it is damaged."""


class StoreWriteError(FxdaskError, OSError):
    """A write into a store failed; what was written before stays usable."""


class DiskSpaceError(FxdaskError, OSError):
    """The job needs more room than the disk has."""


class MemoryPlanError(FxdaskError, MemoryError):
    """No way of cutting the job fits into the memory that there is."""


class ClusterError(FxdaskError):
    """The Dask cluster cannot be reached or has nobody to work."""


class DataUnavailableError(FxdaskError, OSError):
    """A data set is neither on this machine nor to be had from the network."""


class WeightStreamError(FxdaskError):
    """This NumPy draws other random weights than the one that made the store."""


class FewUsableNodesWarning(UserWarning):
    """Fewer nodes than asked for separate the classes at all."""


class VersionMismatchWarning(UserWarning):
    """A worker has other libraries than the process that sends it work."""


class ZeroSpreadWarning(UserWarning):
    """A class counts as constant at most of the nodes."""


def warn_user(message: str, category: type[Warning]) -> None:
    """Warn at the line outside of fxdask that made the call, however deep inside fxdask the warning arises."""
    package = str(Path(__file__).parent)
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(package):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
