"""What a fit was asked for and how it will run: its data, its plan, and all that its result depends on."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from fxdask.execution.scan import SampleScan
from fxdask.kernels.projections import PROJECTIONS
from fxdask.kernels.statistics import TOLERANCE_RULE
from fxdask.planning.fit_plan import FitPlan
from fxdask.planning.pool_plan import plan_pool
from fxdask.store.layout import ModelShape
from fxdask.workflows.model import TrainingData
from fxdask.workflows.settings import FitSettings

__all__ = ["ModelRequest"]


@dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """The model that a call requests, and the plan of its fit."""

    settings: FitSettings
    data: TrainingData
    scan: SampleScan
    plan: FitPlan
    normalize_requested: str | None
    """The parameter ``normalize`` as it was passed; the settings have the choice of "auto" instead."""
    copied_bytes: int = 0
    """Bytes of samples that lie beside the store while the fit runs."""

    def identity(self) -> dict[str, Any]:
        """Everything that the result depends on: parameters, data, weights, tile shape; not workers or memory."""
        # "density" is left out because it does not change the labels, so it may differ between calls.
        left_out = {"density"}
        # As before these settings existed, so that stores of that time are still the same job.
        if self.settings.selection == "top":
            left_out |= {"selection", "pool_size"}
        if not self.settings.shrink_spread:
            left_out.add("shrink_spread")
        if self.settings.projection == "gaussian":
            left_out.add("projection")
        parameters = {name: value for name, value in asdict(self.settings).items() if name not in left_out}
        return {
            **json.loads(json.dumps(parameters)),
            "samples": self.scan.digest,
            "samples_dtype": self.data.samples.dtype.newbyteorder("<").str,
            "labels": self.data.labels_digest(),
            "weight_scheme": PROJECTIONS[self.plan.projection].scheme,
            "zero_tolerance": TOLERANCE_RULE,
            "tile": [self.plan.tile.nodes, self.plan.tile.samples],
        }

    @property
    def pool_bytes(self) -> int:
        """Bytes of the candidates' scores that the store holds while a joint selection runs."""
        if self.settings.selection == "top":
            return 0
        return plan_pool(self.plan, self.plan.n_ranked, in_store=True).score_bytes

    @property
    def job(self) -> str:
        """Digest of the identity, kept in the header, in the mark of every block and in the hidden folder's name."""
        return hashlib.sha256(json.dumps(self.identity(), sort_keys=True).encode()).hexdigest()

    @property
    def shape(self) -> ModelShape:
        """Sizes of the store's arrays."""
        plan = self.plan
        return ModelShape(
            n_nodes=plan.n_nodes,
            n_features=plan.n_features,
            n_classes=plan.n_classes,
            n_samples=plan.n_samples,
            nodes_per_block=plan.nodes_per_block,
            kept=plan.kept,
        )
