"""Every exception and warning class of fxdask, and the function that issues the warnings."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

__all__ = [
    "ClusterError",
    "DataUnavailableError",
    "DiskSpaceError",
    "FewUsableNodesWarning",
    "FxdaskError",
    "InvalidInputError",
    "MemoryPlanError",
    "NotFiniteError",
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
    """Base class of all errors that fxdask raises; a message is one line, whatever names and texts it quotes."""

    def __str__(self) -> str:
        return " ".join(super().__str__().splitlines())


class InvalidInputError(FxdaskError, ValueError):
    """Samples, labels or parameters are invalid."""


class ChangedSamplesError(InvalidInputError):
    """The samples changed while a job read them."""


class NotFiniteError(InvalidInputError):
    """The samples have a NaN, an infinity or a missing value.

    Tasks know a feature only by its number; :meth:`named` adds the name of its column.
    """

    def __init__(
        self, value: str, sample: int, feature: int, name: str | None = None, within: str = "", remedy: str = ""
    ) -> None:
        super().__init__(value, sample, feature, name, within, remedy)  # all of them, so that it can be pickled

    def __str__(self) -> str:
        value, sample, feature, name, within, remedy = self.args
        place = f"feature {feature}" if name is None else f"column {name!r}"
        return (
            f"Input X contains {value}, first in sample {sample}{within}, {place}; "
            f"remove these samples or replace such values by finite numbers{remedy and ', or ' + remedy}"
        )

    @property
    def is_missing(self) -> bool:
        """Whether the value is missing, and not infinite."""
        return bool(self.args[0] != "infinity")

    def named(self, names: Sequence[str], within: str | None = None) -> NotFiniteError:
        """The same error with the name of the column, and with what the sample's number refers to."""
        value, sample, feature, _, earlier, remedy = self.args
        return NotFiniteError(
            value, sample, feature, str(names[feature]), earlier if within is None else within, remedy
        )

    def with_remedy(self, remedy: str) -> NotFiniteError:
        """The same error, with one more way to mend it."""
        value, sample, feature, name, within, _ = self.args
        return NotFiniteError(value, sample, feature, name, within, remedy)


class StoreExistsError(FxdaskError, FileExistsError):
    """The path is in use, or holds something else than this call would write."""


class StoreFormatError(FxdaskError, ValueError):
    """The folder is not an fxdask store, is damaged, or has a format that this version cannot read."""


class StoreUnfinishedError(FxdaskError):
    """The store was started but not finished."""


class StoreReadError(FxdaskError, OSError):
    """Reading a store failed, without a sign of damage."""


class StoreWriteError(FxdaskError, OSError):
    """Writing to a store failed; chunks written earlier remain usable."""


class DiskSpaceError(FxdaskError, OSError):
    """The job needs more disk space than is free."""


class MemoryPlanError(FxdaskError, MemoryError):
    """No plan for the job fits into the available memory."""


class ClusterError(FxdaskError):
    """The Dask cluster cannot be reached, has no workers, or its workers cannot run the job."""


class DataUnavailableError(FxdaskError, OSError):
    """A data set is not on this machine and could not be downloaded."""


class WeightStreamError(FxdaskError):
    """This NumPy draws different random weights than the one that wrote the store."""


class FewUsableNodesWarning(UserWarning):
    """Fewer nodes than requested separate the classes."""


class VersionMismatchWarning(UserWarning):
    """A worker has different library versions than this process."""


class ZeroSpreadWarning(UserWarning):
    """A class is treated as constant at most of the nodes."""


def warn_user(message: str, category: type[Warning]) -> None:
    """Issue a warning that points at the line of the caller's code that called fxdask."""
    package = f"{Path(__file__).parent}{os.sep}"
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(package):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
