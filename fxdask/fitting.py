"""From checked data to a fitted model: survey, plan, store, blocks, selection."""

from __future__ import annotations

import hashlib
import json
import logging
import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import dask
import numpy as np
from dask.array import Array as DaskArray
from numpy.typing import NDArray

from fxdask import graph
from fxdask.errors import (
    FewUsableNodesWarning,
    InvalidInputError,
    StoreExistsError,
    StoreFormatError,
    WeightStreamError,
)
from fxdask.graph import Handle, Progress, Survey
from fxdask.inputs import Samples
from fxdask.kernels.decision import FittedNetwork
from fxdask.kernels.density import bandwidths
from fxdask.kernels.preparation import Preparation, preparation_from
from fxdask.kernels.selection import NO_NODE
from fxdask.kernels.statistics import SPREAD_SOURCES, node_tolerance, spread_of
from fxdask.kernels.weights import CANARY_INPUTS, SCHEME, canary_nodes, weight_rows
from fxdask.plan import FitPlan, format_bytes, plan_fit
from fxdask.store.group import check_room, peek_header, remove_group
from fxdask.store.model import ModelStore
from fxdask.store.samples import ZarrAddress
from fxdask.tasks import FitJob, FitSummary

__all__ = ["FitSettings", "FittedModel", "TrainingData", "fit_model", "load_model"]

log = logging.getLogger(__name__)

# Weights beyond six standard deviations do not occur; the product of more must still fit float32.
LARGEST_PRODUCT = float(np.finfo(np.float32).max) / 8


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
    normalize: str | None
    keep_projections: str
    seed: int


@dataclass(frozen=True)
class TrainingData:
    """Checked samples with their class codes."""

    samples: Samples
    classes: NDArray
    codes: NDArray[np.integer]
    counts: NDArray[np.int64]

    def labels_digest(self) -> str:
        """Digest of the classes and of every sample's class."""
        named = json.dumps(_classes_to_json(self.classes)).encode()
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
    source_counts: NDArray[np.int64]
    samples_digest: str
    info: dict[str, Any]
    names: NDArray | None = None


def fit_model(
    settings: FitSettings,
    data: TrainingData,
    *,
    nodes_per_block: int | str = "auto",
    store: str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> FittedModel:
    """Fit a network, into a store if one is named; finish or load what an equal call left there."""
    started = time.perf_counter()
    samples = _in_memory_without_store(data.samples, store)
    plan = plan_fit(
        settings.n_nodes, samples.n_inputs, tuple(map(int, data.counts)), settings.n_selected, nodes_per_block
    )
    seen = graph.survey(samples.handle, samples.n_samples, samples.n_inputs, settings.normalize)
    preparation = preparation_from(seen.summary, settings.normalize, samples.dtype)
    _check_range(preparation, seen, samples.n_inputs)
    job = FitJob(
        plan,
        settings.seed,
        preparation,
        data.codes,
        _prior_values(settings.priors, data.counts),
        settings.criterion,
        settings.location,
        settings.spread,
        keep_all_projections=settings.keep_projections == "all",
    )
    if store is None:
        return _run(settings, data, job, graph.place(samples.handle), None, seen, started, progress)
    staged = samples.n_bytes if _needs_staging(samples.handle) else 0
    model_store, created = _open_store(store, settings, data, seen, plan, staged, overwrite=overwrite)
    if model_store.header["finished"]:
        log.info("%s already holds this model", store)
        return load_model(store)
    plan = replace(plan, nodes_per_block=model_store.header["nodes_per_block"])
    job = replace(job, plan=plan, store=store)
    try:
        handle = _stage(model_store, samples) if staged else samples.handle
        return _run(settings, data, job, handle, model_store, seen, started, progress)
    except InvalidInputError:
        if created:
            remove_group(store)
        raise


def _run(
    settings: FitSettings,
    data: TrainingData,
    job: FitJob,
    handle: Handle,
    store: ModelStore | None,
    seen: Survey,
    started: float,
    progress: Progress | None,
) -> FittedModel:
    log.info("fitting %d nodes in %d blocks of %d", job.plan.n_nodes, job.plan.n_blocks, job.plan.nodes_per_block)
    summary = graph.fit_blocks(job, handle, progress)
    _check_usable(summary, data.classes)
    # An array of this process is projected here; only its copies on workers came through a future.
    local = data.samples.handle if isinstance(data.samples.handle, np.ndarray) else handle
    network = _select(settings, job, local, summary)
    info = {
        "seconds": time.perf_counter() - started,
        "n_blocks": job.plan.n_blocks,
        "n_blocks_resumed": summary.n_resumed,
        "blocks_by_process": summary.processes,
    }
    _log_fallbacks(settings.spread, summary.source_counts)
    if store is None:
        divergences = np.concatenate([summary.arrays[i]["divergences"] for i in range(job.plan.n_blocks)], axis=1)
    else:
        divergences = store.read("divergences")
        _finish_store(store, job, network, summary)
    return FittedModel(
        settings,
        data.classes,
        job,
        network,
        summary.top.nodes,
        divergences,
        summary.source_counts,
        seen.digest,
        info,
        data.samples.names,
    )


def _in_memory_without_store(samples: Samples, store: str | None) -> Samples:
    """Without a store there is nowhere to copy a Dask array's values to but memory."""
    if store is None and isinstance(samples.handle, DaskArray):
        (array,) = dask.compute(samples.handle)
        return replace(samples, handle=np.ascontiguousarray(array))
    return samples


def _check_range(preparation: Preparation, seen: Survey, n_inputs: int) -> None:
    fits = preparation.largest * n_inputs < LARGEST_PRODUCT
    if not (fits and np.isfinite(seen.summary.squares).all()):
        largest = max(np.abs(seen.summary.minimum).max(), np.abs(seen.summary.maximum).max())
        raise InvalidInputError(
            f"X has values up to {largest:.3g}, whose products leave float32's range; scale X down"
        )


def _prior_values(priors: str | tuple[float, ...], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    if priors == "class_share":
        return counts / counts.sum()
    if priors == "equal":
        return np.full(len(counts), 1 / len(counts))
    values = np.asarray(priors, dtype=np.float64)
    if values.shape != (len(counts),):
        raise InvalidInputError(f"priors has {values.size} values but y has {len(counts)} classes; give one for each")
    return values / values.sum()


def _check_usable(summary: FitSummary, classes: NDArray) -> None:
    usable = (summary.top.nodes != NO_NODE).sum(axis=1)
    wanted = summary.top.nodes.shape[1]
    for label, count in zip(classes, usable, strict=True):
        if count == 0:
            raise InvalidInputError(
                f"no node tells class {label} from the others: every projection is constant; X may hold one sample repeated"
            )
        if count < wanted:
            warnings.warn(
                f"class {label} has only {count} usable nodes of the {wanted} asked for; those are used",
                FewUsableNodesWarning,
                stacklevel=4,
            )


def _log_fallbacks(spread: str, source_counts: NDArray[np.int64]) -> None:
    for name, count in zip(SPREAD_SOURCES, source_counts.sum(axis=0), strict=True):
        if name != spread and count:
            log.info("%d spreads of %d were zero by %s and came from %s", count, source_counts.sum(), spread, name)


def _select(settings: FitSettings, job: FitJob, samples: Handle, summary: FitSummary) -> FittedNetwork:
    """The nodes that any class selected, with their training values and bandwidths."""
    chosen = summary.top.nodes
    nodes = np.unique(chosen[chosen != NO_NODE])
    weights = weight_rows(job.seed, nodes, job.plan.n_inputs)
    projections = graph.project_selected(job, samples, weights)
    tolerance = node_tolerance(weights, job.preparation.largest)
    columns = job.plan.class_slices
    own = [projections[:, some] for some in columns]
    width_spread = [spread_of(values, tolerance, settings.bandwidth_spread) for values in own]
    return FittedNetwork(
        job.preparation,
        nodes,
        weights,
        projections,
        columns,
        bandwidth=np.array([bandwidths(v, s, tolerance, settings.bandwidth) for v, s in zip(own, width_spread, strict=True)]),
        spread=np.array([spread_of(values, tolerance, settings.spread) for values in own]),
        member=np.array([np.isin(nodes, row) for row in chosen]),
        log_priors=np.log(job.priors),
        combine=settings.combine,
    )


# The store's side


def _open_store(
    url: str,
    settings: FitSettings,
    data: TrainingData,
    seen: Survey,
    plan: FitPlan,
    staged_bytes: int,
    *,
    overwrite: bool,
) -> tuple[ModelStore, bool]:
    """The store of exactly this job, begun, finished or new; and whether this call created it."""
    wanted = _identity(settings, data, seen, plan)
    header = peek_header(url)
    needed = plan.store_bytes(keep_all_projections=settings.keep_projections == "all", staged_bytes=staged_bytes)
    if header is not None and not (overwrite and header.get("kind") == "model"):
        _refuse_other_job(url, header, wanted)
        store = ModelStore.open(url, "r+", finished=False)
        _check_canaries(store, settings.seed, plan)
        if not header["finished"]:
            check_room(url, int(needed * (1 - store.blocks_done().mean())))
        return store, False
    check_room(url, needed)
    facts = {
        "identity": wanted,
        "classes": _classes_to_json(data.classes),
        "names": None if data.samples.names is None else [str(name) for name in data.samples.names],
    }
    log.info("creating %s, at most %s", url, format_bytes(needed))
    store = ModelStore.create(url, plan, facts, keep_all_projections=settings.keep_projections == "all")
    store.write("canaries", _canaries(settings.seed, plan))
    return store, True


def _identity(settings: FitSettings, data: TrainingData, seen: Survey, plan: FitPlan) -> dict[str, Any]:
    """What makes two fits the same: parameters, data, weights and rounding; never workers or memory."""
    return {
        **json.loads(json.dumps(asdict(settings))),
        "samples": seen.digest,
        "samples_dtype": data.samples.dtype.newbyteorder("<").str,
        "labels": data.labels_digest(),
        "weight_scheme": SCHEME,
        "tile": [plan.tile.nodes, plan.tile.samples],
    }


def _refuse_other_job(url: str, header: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    if header.get("kind") != "model":
        raise StoreExistsError(f"{url} holds {header.get('kind')!r}, not a model; choose another path")
    stored = header.get("identity", {})
    other = [key for key in wanted if stored.get(key) != wanted[key]]
    if not other:
        return
    digests = {"samples": "other samples", "samples_dtype": "samples of another type", "labels": "other labels"}
    words = [digests.get(key) or f"{key}={stored.get(key)!r} instead of {wanted[key]!r}" for key in other]
    raise StoreExistsError(
        f"{url} holds a model made from {', '.join(words)}; choose another path, or pass overwrite=True to replace it"
    )


def _canaries(seed: int, plan: FitPlan) -> NDArray[np.float32]:
    return weight_rows(seed, canary_nodes(plan.n_nodes), plan.n_inputs)[:, :CANARY_INPUTS]


def _check_canaries(store: ModelStore, seed: int, plan: FitPlan) -> None:
    # A store killed between its creation and its canaries has no block yet that they could contradict.
    if "canaries" not in store:
        store.write("canaries", _canaries(seed, plan))
    elif not np.array_equal(store.read("canaries"), _canaries(seed, plan)):
        raise WeightStreamError(
            f"this NumPy ({np.__version__}) draws other weights than the one that made {store.url}; "
            "use that version, or fit into a new store"
        )


def _needs_staging(handle: Handle) -> bool:
    """Whether workers could not read the samples from where they are."""
    return isinstance(handle, DaskArray) or (isinstance(handle, np.ndarray) and graph.active_client() is not None)


def _stage(store: ModelStore, samples: Samples) -> ZarrAddress:
    if not store.has_all_samples():
        store.stage_samples(samples.n_samples, samples.n_inputs, samples.dtype)
        graph.stage(samples.handle, samples.n_samples, samples.n_inputs, store.url)
    return ZarrAddress(store.url, "samples")


def _finish_store(store: ModelStore, job: FitJob, network: FittedNetwork, summary: FitSummary) -> None:
    store.write("labels", job.codes.astype(np.int32))
    store.write("priors", job.priors)
    store.write("shift", job.preparation.shift)
    if job.preparation.scale is not None:
        store.write("scale", job.preparation.scale)
    store.write("selection", summary.top.nodes)
    for name in ("nodes", "weights", "projections", "bandwidth", "spread"):
        store.write(f"selected/{name}", getattr(network, name))
    store.drop_samples()
    store.finish(largest=job.preparation.largest, source_counts=summary.source_counts.tolist())


def load_model(url: str) -> FittedModel:
    """A finished store -> the fitted model, on any machine."""
    store = ModelStore.open(url)
    header = store.header
    try:
        identity, sizes = header["identity"], header["sizes"]
        settings = FitSettings(**{name: identity[name] for name in FitSettings.__dataclass_fields__})
        classes = _classes_from_json(header["classes"])
        codes = store.read("labels").astype(np.min_scalar_type(len(classes) - 1))
        counts = tuple(int(count) for count in np.bincount(codes, minlength=len(classes)))
        plan = FitPlan(sizes["node"], sizes["input"], counts, settings.n_selected, header["nodes_per_block"])
        preparation = Preparation(
            settings.normalize,
            store.read("shift"),
            store.read("scale") if settings.normalize == "feature" else None,
            header["largest"],
        )
        names, source_counts = header["names"], np.asarray(header["source_counts"])
        digest = identity["samples"]
    except (KeyError, TypeError, ValueError) as error:
        raise StoreFormatError(f"{url} is damaged: its header does not say {error}") from error
    if isinstance(settings.priors, list):
        settings = replace(settings, priors=tuple(settings.priors))
    priors = store.read("priors")
    job = FitJob(
        plan,
        settings.seed,
        preparation,
        codes,
        priors,
        settings.criterion,
        settings.location,
        settings.spread,
        url,
        settings.keep_projections == "all",
    )
    selected = store.read("selection")
    nodes = store.read("selected/nodes")
    network = FittedNetwork(
        preparation,
        nodes,
        store.read("selected/weights"),
        store.read("selected/projections"),
        plan.class_slices,
        store.read("selected/bandwidth"),
        store.read("selected/spread"),
        np.array([np.isin(nodes, row) for row in selected]),
        np.log(priors),
        settings.combine,
    )
    return FittedModel(
        settings,
        classes,
        job,
        network,
        selected,
        store.read("divergences"),
        source_counts,
        digest,
        {},
        None if names is None else np.asarray(names, dtype=object),
    )


def _classes_to_json(classes: NDArray) -> dict[str, Any]:
    return {"dtype": classes.dtype.str, "values": classes.tolist()}


def _classes_from_json(stored: Mapping[str, Any]) -> NDArray:
    return np.array(stored["values"], dtype=np.dtype(stored["dtype"]))
