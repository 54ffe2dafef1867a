"""A fitted model: its parts, its store, and the way back."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fxdask.errors import StoreExistsError, StoreFormatError, WeightStreamError
from fxdask.graph import Survey
from fxdask.inputs import Samples
from fxdask.job import FitJob
from fxdask.kernels.assembly import DensityRules
from fxdask.kernels.decision import FittedNetwork
from fxdask.kernels.preparation import Preparation
from fxdask.kernels.weights import CANARY_INPUTS, SCHEME, canary_nodes, weight_rows
from fxdask.plan import FitPlan, format_bytes
from fxdask.store.group import check_room, peek_header, refuse_foreign_files
from fxdask.store.layout import BLOCK_ARRAYS, MODEL_ARRAYS
from fxdask.store.model import ModelStore
from fxdask.store.place import working_url
from fxdask.tasks import FitSummary

__all__ = [
    "FitSettings",
    "FittedModel",
    "TrainingData",
    "canaries",
    "finish_store",
    "load_model",
    "open_job_store",
    "stored_seed",
]

log = logging.getLogger(__name__)

MOST_LABEL_BYTES = 2**18


@dataclass(frozen=True)
class FitSettings:
    """Every parameter that a result depends on, and nothing else."""

    n_nodes: int
    n_selected: int
    criterion: str
    location: str
    spread: str
    bandwidth: str | float
    bandwidth_spread: str
    priors: str | tuple[float, ...]
    combine: str
    density: str
    normalize: str | None
    keep_projections: str
    keep_weights: bool
    seed: int

    @property
    def kept(self) -> tuple[str, ...]:
        """The arrays of all nodes that a store holds by choice."""
        wanted = {"weights": self.keep_weights, "projections": self.keep_projections == "all"}
        return tuple(name for name, is_wanted in wanted.items() if is_wanted)

    @property
    def density_rules(self) -> DensityRules:
        """What the densities of selected nodes follow."""
        return DensityRules(self.bandwidth, self.bandwidth_spread, self.spread, self.combine, self.density)


@dataclass(frozen=True)
class TrainingData:
    """Checked samples with their class codes."""

    samples: Samples
    classes: NDArray
    codes: NDArray[np.integer]
    counts: NDArray[np.int64]

    def labels_digest(self) -> str:
        """Digest of the classes and of every sample's class."""
        kind = "text" if self.classes.dtype.kind in "UO" else self.classes.dtype.kind
        named = json.dumps([kind, self.classes.tolist()]).encode()
        return hashlib.sha256(named + np.asarray(self.codes, "<i4").tobytes()).hexdigest()


@dataclass(frozen=True)
class FittedModel:
    """A fitted network with everything that users may ask of it."""

    settings: FitSettings
    classes: NDArray
    job: FitJob
    network: FittedNetwork
    selected_nodes: NDArray[np.int64]
    divergences: NDArray[np.float64]
    density_error: NDArray[np.float64]
    source_counts: NDArray[np.int64]
    samples_digest: str
    canaries: NDArray[np.float32]
    bandwidth_fallbacks: dict[str, int]
    info: dict[str, Any]
    names: NDArray | None = None

    def density_error_of_selected(self) -> NDArray[np.float64]:
        """(class, rank) bound on the error of each selected node's density; NaN where there is no node."""
        places = np.searchsorted(self.network.nodes, np.maximum(self.selected_nodes, 0))
        error = np.take_along_axis(self.density_error, places.clip(max=len(self.network.nodes) - 1), axis=1)
        return np.where(self.selected_nodes >= 0, error, np.nan)

    def check_weights(self) -> None:
        """Refuse to draw weights again where this NumPy draws others than the one that fitted the model."""
        if not np.array_equal(self.canaries, canaries(self.settings.seed, self.job.plan)):
            raise WeightStreamError(
                f"this NumPy ({np.__version__}) draws other weights than the one that made the model; use that version"
            )


def open_job_store(
    url: str,
    settings: FitSettings,
    data: TrainingData,
    seen: Survey,
    plan: FitPlan,
    staged_bytes: int,
    *,
    overwrite: bool,
) -> tuple[ModelStore, bool]:
    """The store of exactly this job, begun, finished or new; and whether this call created it.

    A finished store that is to be overwritten stays until the new one, beside it, is finished too.
    """
    wanted = _identity(settings, data, seen, plan)
    header = peek_header(url)
    if overwrite and header is not None and header["kind"] == "model":
        refuse_foreign_files(url, (spec.name for spec in (*BLOCK_ARRAYS, *MODEL_ARRAYS)))
    if overwrite and (header is None or header["kind"] == "model"):
        # The name holds a digest of the job, so that an equal call finds what was begun, and no other does.
        begun = working_url(url, _digest(wanted)[:16])
        if begun == url and header is not None and _differences(header, wanted):
            header = None  # an object store has no place beside: the earlier model goes first
        elif header is not None or peek_header(begun) is not None:
            url, header = begun, peek_header(begun)
    needed = plan.store_bytes(staged_bytes)
    if header is not None:
        _refuse_other_job(url, header, wanted)
        store = ModelStore.open(url, "r+", finished=False)
        store.check_plan(plan)
        _check_stored_canaries(store, settings.seed, plan)
        if not header["finished"]:
            check_room(url, int(needed * (1 - store.blocks_done().mean())))
        return store, False
    check_room(url, needed)
    facts = {
        "identity": wanted,
        "job": _digest(wanted),
        "density": settings.density,
        "classes": _classes_to_json(data.classes),
        "names": None if data.samples.names is None else [str(name) for name in data.samples.names],
    }
    log.info("creating %s, at most %s", url, format_bytes(needed))
    drawn = canaries(settings.seed, plan)
    return ModelStore.create(url, plan, facts, drawn), True


def stored_seed(url: str) -> int | None:
    """The seed of the model at this address, finished or not; None where there is none."""
    header = peek_header(url) or {}
    return header.get("identity", {}).get("seed")


def _identity(settings: FitSettings, data: TrainingData, seen: Survey, plan: FitPlan) -> dict[str, Any]:
    """What makes two fits the same: parameters, data, weights and rounding; never workers or memory."""
    # Looked up or summed, the same model labels the same: which of both may change from call to call.
    deciding = {name: value for name, value in asdict(settings).items() if name != "density"}
    return {
        **json.loads(json.dumps(deciding)),
        "samples": seen.digest,
        "samples_dtype": data.samples.dtype.newbyteorder("<").str,
        "labels": data.labels_digest(),
        "weight_scheme": SCHEME,
        "tile": [plan.tile.nodes, plan.tile.samples],
    }


def _digest(identity: Mapping[str, Any]) -> str:
    """What names a job: in the store's header, in the mark of every block, in the name of a folder to work in."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def _differences(header: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """In words, what a stored model was made from that this call would not make it from."""
    stored = header.get("identity", {})
    named = {"samples": "other samples", "samples_dtype": "samples of another type", "labels": "other labels"}
    return [
        named.get(key) or f"{key}={stored.get(key)!r} instead of {wanted[key]!r}"
        for key in wanted
        if stored.get(key) != wanted[key]
    ]


def _refuse_other_job(url: str, header: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    if header.get("kind") != "model":
        raise StoreExistsError(f"{url} holds {header.get('kind')!r}, not a model; choose another path")
    words = _differences(header, wanted)
    if words:
        raise StoreExistsError(
            f"{url} holds a model made from {', '.join(words)}; "
            "choose another path, or pass overwrite=True to replace it"
        )


def canaries(seed: int, plan: FitPlan) -> NDArray[np.float32]:
    """The first weights of a few nodes, which tell whether another NumPy draws the same."""
    return weight_rows(seed, canary_nodes(plan.n_nodes), plan.n_inputs)[:, :CANARY_INPUTS]


def _check_stored_canaries(store: ModelStore, seed: int, plan: FitPlan) -> None:
    if not np.array_equal(store.read("canaries"), canaries(seed, plan)):
        raise WeightStreamError(
            f"this NumPy ({np.__version__}) draws other weights than the one that made {store.url}; "
            "use that version, or fit into a new store"
        )


def finish_store(
    store: ModelStore,
    job: FitJob,
    network: FittedNetwork,
    density_error: NDArray[np.float64],
    summary: FitSummary,
    bandwidth_fallbacks: dict[str, int],
) -> None:
    """Write what labelling needs, and last of all the mark that the model is complete."""
    store.write("labels", job.codes.astype(np.int32))
    store.write("priors", job.priors)
    store.write("shift", job.preparation.shift)
    if job.preparation.scale is not None:
        store.write("scale", job.preparation.scale)
    store.write("selection", summary.top.nodes)
    for name in ("nodes", "weights", "projections", "bandwidth", "spread"):
        store.write(f"selected/{name}", getattr(network, name))
    store.write("selected/density_error", density_error)
    store.drop_samples()
    store.finish(
        largest=job.preparation.largest,
        source_counts=summary.source_counts.tolist(),
        bandwidth_fallbacks=bandwidth_fallbacks,
    )


def load_model(url: str) -> FittedModel:
    """A finished store -> the fitted model, on any machine."""
    store = ModelStore.open(url)
    header = store.header
    try:
        settings = _settings_from_json({**header["identity"], "density": header["density"]})
        classes = _classes_from_json(header["classes"])
        job = _stored_job(store, settings, len(classes))
        names, source_counts = header["names"], np.asarray(header["source_counts"], dtype=np.int64)
        digest, bandwidth_fallbacks = header["identity"]["samples"], header["bandwidth_fallbacks"]
        _check_sizes(settings, job.plan, len(classes), len(job.priors), names, bandwidth_fallbacks)
    except StoreFormatError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise StoreFormatError(f"{url} is damaged: its header makes no sense ({error})") from error
    selected = store.read("selection")
    if selected.shape[1] != settings.n_selected or not (selected.min() >= -1 and selected.max() < job.plan.n_nodes):
        raise StoreFormatError(f"{url} is damaged: its selection is not of {settings.n_selected} of its nodes")
    network = _stored_network(store, settings, job, selected)
    wrong = _impossible(network, job, selected, classes)
    if wrong:
        raise StoreFormatError(f"{url} is damaged: {wrong} cannot be what a fit has written")
    return FittedModel(
        settings,
        classes,
        job,
        network,
        selected,
        store.read_quantity("divergence"),
        store.read("selected/density_error"),
        source_counts,
        digest,
        store.read("canaries"),
        bandwidth_fallbacks,
        {},
        None if names is None else np.asarray(names, dtype=object),
    )


def _check_sizes(
    settings: FitSettings, plan: FitPlan, n_classes: int, n_priors: int, names: Any, fallbacks: Any
) -> None:
    """Refuse a header whose parts do not fit together."""
    if min(plan.n_nodes, plan.n_inputs, plan.nodes_per_block) < 1 or n_classes != n_priors:
        raise ValueError("sizes that fit together")
    if settings.n_nodes != plan.n_nodes:
        raise ValueError(f"{settings.n_nodes} nodes were asked for, and there are {plan.n_nodes}")
    if names is not None and not (isinstance(names, list) and len(names) == plan.n_inputs):
        raise ValueError(f"names of {plan.n_inputs} inputs")
    if not isinstance(fallbacks, dict):
        raise ValueError("counts of fallbacks")


def _stored_job(store: ModelStore, settings: FitSettings, n_classes: int) -> FitJob:
    header, sizes = store.header, store.header["sizes"]
    labels = store.read("labels")
    if labels.size == 0 or labels.min() < 0 or labels.max() >= n_classes:
        raise ValueError(f"labels outside of the {n_classes} classes")
    codes = labels.astype(np.min_scalar_type(n_classes - 1))
    counts = tuple(int(count) for count in np.bincount(codes, minlength=n_classes))
    scale = store.read("scale") if settings.normalize == "feature" else None
    priors = store.read("priors")
    if not (np.isfinite(priors) & (priors > 0)).all():
        raise StoreFormatError(f"{store.url} is damaged: priors cannot be what a fit has written")
    return FitJob(
        FitPlan(
            sizes["node"], sizes["input"], counts, settings.n_selected, header["nodes_per_block"], kept=settings.kept
        ),
        settings.seed,
        Preparation(settings.normalize, store.read("shift"), scale, float(header["largest"])),
        codes,
        priors,
        settings.criterion,
        settings.location,
        settings.spread,
        store.url,
    )


def _stored_network(
    store: ModelStore, settings: FitSettings, job: FitJob, selected: NDArray[np.int64]
) -> FittedNetwork:
    nodes = store.read("selected/nodes")
    return FittedNetwork(
        job.preparation,
        nodes,
        store.read("selected/weights"),
        store.read("selected/projections"),
        job.plan.class_slices,
        store.read("selected/bandwidth"),
        store.read("selected/spread"),
        np.array([np.isin(nodes, row) for row in selected]),
        np.log(job.priors),
        settings.combine,
        settings.density,
    )


def _impossible(network: FittedNetwork, job: FitJob, selected: NDArray[np.int64], classes: NDArray) -> str:
    """The name of the first stored array whose values no fit gives, if there is one."""
    numbers = {
        "shift": job.preparation.shift,
        "scale": job.preparation.scale,
        "selected/weights": network.weights,
        "selected/projections": network.projections,
        "selected/bandwidth": network.bandwidth,
        "selected/spread": network.spread,
    }
    for name, values in numbers.items():
        if values is not None and not np.isfinite(values).all():
            return name
    if not (network.bandwidth > 0).all():
        return "selected/bandwidth"
    if not np.array_equal(network.nodes, np.unique(selected[selected >= 0])) or not len(network.nodes):
        return "selected/nodes"
    if classes.ndim != 1 or classes.dtype.kind not in "biufUO" or len(np.unique(classes)) != len(classes):
        return "its list of classes"
    return ""


def _settings_from_json(stored: Mapping[str, Any]) -> FitSettings:
    settings = FitSettings(**{field.name: stored[field.name] for field in fields(FitSettings)})
    return replace(settings, priors=tuple(settings.priors)) if isinstance(settings.priors, list) else settings


def _classes_to_json(classes: NDArray) -> dict[str, Any]:
    return {"dtype": classes.dtype.str, "values": classes.tolist()}


def _classes_from_json(stored: Mapping[str, Any]) -> NDArray:
    dtype = np.dtype(stored["dtype"])
    if dtype.itemsize > MOST_LABEL_BYTES:
        raise ValueError(f"classes of type {dtype}")
    if dtype.kind == "O" and not all(isinstance(value, str) for value in stored["values"]):
        raise ValueError("classes that are no texts")
    return np.array(stored["values"], dtype=dtype)
