"""Load a fitted model from its finished store, and refuse one with values that no fit writes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fxdask.errors import StoreFormatError
from fxdask.kernels.density.summed import from_arrays
from fxdask.kernels.network import NetworkParameters, class_members
from fxdask.kernels.order_statistics import SortedRows
from fxdask.kernels.preprocessing import Preprocessing
from fxdask.kernels.scorer import Scorer
from fxdask.kernels.statistics import LOCATIONS, SPREAD_SOURCES
from fxdask.kernels.temperature import picked_slices
from fxdask.planning.fit_plan import FitPlan
from fxdask.sizes import projection_in_use
from fxdask.store.columns import StagedCodes
from fxdask.store.model import ModelStore
from fxdask.store.sources import NpyAddress, ZarrAddress
from fxdask.tasks.job import FitJob
from fxdask.tasks.reread import TrainingSamples
from fxdask.workflows.model import FittedModel
from fxdask.workflows.settings import AUTOMATIC, EARLIER_SETTINGS, FitSettings

__all__ = ["load_model"]

MOST_LABEL_BYTES = 2**18
LABEL_TYPE = re.compile(r"[<>|]?[biufUO][0-9]*")
FORMAT_WITHOUT_CLASS_NORMS = 6
FORMAT_OF_JOINT_MODELS = 8
FORMATS_WITHOUT_IMPORTANCES = (6, 7)


def load_model(url: str) -> FittedModel:
    """Load the fitted model from a finished store, on any machine."""
    store = ModelStore.open(url)
    header = store.header
    try:
        settings = _settings_from_json({**header["identity"], "density": header["density"]})
        settings.check()
        classes = _classes_from_json(header["classes"])
        job = _stored_job(store, settings, len(classes))
        names, source_counts = header["names"], np.asarray(header["source_counts"], dtype=np.int64)
        digest, fallbacks = header["identity"]["samples"], header["bandwidth_fallbacks"]
        temperature = _stored_temperature(header)
        requested = _stored_request(header, settings)
        _check_sizes(settings, job, len(classes), names, fallbacks)
        if source_counts.shape != (len(classes), len(SPREAD_SOURCES)):
            raise ValueError(f"source_counts has shape {source_counts.shape}")
    except StoreFormatError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise StoreFormatError(f"{url} is damaged: its header is invalid ({error}); restore or refit it") from error
    selected, overlaps = _stored_selection(store, settings, len(classes))
    parameters = _stored_parameters(store, settings, job, selected)
    importances = _stored_importances(store)
    wrong = _impossible_array(parameters, job, selected, classes) or _impossible_importances(importances)
    if wrong:
        raise StoreFormatError(f"{url} is damaged: {wrong} has values that no fit writes; restore or refit it")
    return FittedModel(
        settings=settings,
        classes=classes,
        job=job,
        scorer=Scorer(parameters, settings.density),
        selected_nodes=selected,
        overlaps=overlaps,
        divergences=store.read_quantity("divergence"),
        temperature=temperature,
        normalize_requested=requested,
        density_error=store.read("selected/density_error"),
        source_counts=source_counts,
        samples_digest=digest,
        fingerprint=store.read("canaries"),
        bandwidth_fallbacks=fallbacks,
        info={},
        names=None if names is None else np.asarray(names, dtype=object),
        importances=importances,
    )


def _check_sizes(settings: FitSettings, job: FitJob, n_classes: int, names: Any, fallbacks: Any) -> None:
    """Refuse a header whose entries contradict each other."""
    plan = job.plan
    if min(plan.n_nodes, plan.n_features, plan.nodes_per_block) < 1 or n_classes != len(job.priors):
        raise ValueError("its sizes contradict each other")
    if settings.n_nodes != plan.n_nodes:
        raise ValueError(f"n_nodes is {settings.n_nodes} but the arrays have {plan.n_nodes} nodes")
    if names is not None and not (isinstance(names, list) and len(names) == plan.n_features):
        raise ValueError(f"names must be a list of {plan.n_features} feature names")
    if not isinstance(fallbacks, dict):
        raise ValueError("bandwidth_fallbacks must be an object")


def _stored_job(store: ModelStore, settings: FitSettings, n_classes: int) -> FitJob:
    header, sizes = store.header, store.header["sizes"]
    codes, counts = _stored_codes(store, n_classes, in_store=settings.keeps_tables)
    scale = store.read("scale") if settings.normalize == "feature" else None
    priors = store.read("priors")
    if not (np.isfinite(priors) & (priors > 0)).all():
        raise StoreFormatError(f"{store.url} is damaged: priors has values that no fit writes; restore or refit it")
    plan = FitPlan(
        n_nodes=sizes["node"],
        n_features=sizes["input"],
        class_counts=counts,
        n_selected=settings.n_selected,
        keeps_tables=settings.keeps_tables,
        nodes_per_block=header["nodes_per_block"],
        kept=settings.kept,
        projection=projection_in_use(settings.projection, sizes["input"]),
    )
    largest = float(header["largest"])
    return FitJob(
        plan=plan,
        seed=settings.seed,
        preprocessing=Preprocessing(settings.normalize, store.read("shift"), scale, largest),
        codes=codes,
        priors=priors,
        class_norms=_stored_class_norms(header, plan, largest),
        criterion=settings.node_criterion,
        location=settings.location,
        spread=settings.spread,
        shrink_spread=settings.shrink_spread,
        store=store.url,
    )


def _stored_codes(
    store: ModelStore, n_classes: int, *, in_store: bool
) -> tuple[NDArray[np.integer] | StagedCodes, tuple[int, ...]]:
    """(sample,) class codes, which may stay in the store, and the number of samples of each class."""
    if in_store:
        counts, n_samples = tuple(map(int, store.header["class_counts"])), store.header["sizes"]["sample"]
        if len(counts) != n_classes or min(counts) < 1 or sum(counts) != n_samples:
            raise ValueError(f"class_counts {counts} of {n_samples} samples")
        return StagedCodes(store.url, n_samples, "model", finished=True), counts
    labels = store.read("labels")
    if labels.size == 0 or labels.min() < 0 or labels.max() >= n_classes:
        raise ValueError(f"labels outside of the {n_classes} classes")
    codes = labels.astype(np.min_scalar_type(n_classes - 1))
    return codes, tuple(int(count) for count in np.bincount(codes, minlength=n_classes))


def _stored_temperature(header: Mapping[str, Any]) -> float:
    """The temperature of the probabilities; a model that an older fxdask finished has none."""
    is_new = header["format"] >= FORMAT_OF_JOINT_MODELS
    temperature = float(header["temperature"] if is_new else header.get("temperature", 1.0))
    if not (np.isfinite(temperature) and temperature > 0):
        raise ValueError(f"temperature {temperature} is not above 0")
    return temperature


def _stored_request(header: Mapping[str, Any], settings: FitSettings) -> str | None:
    """The parameter ``normalize`` of the fit; a store of an earlier fxdask tells only the normalisation in use."""
    requested = header.get("normalize_requested", settings.normalize)
    if requested not in (AUTOMATIC, settings.normalize):
        raise ValueError(f"normalize_requested is {requested!r} but {settings.normalize!r} is in use")
    return requested


def _stored_class_norms(header: Mapping[str, Any], plan: FitPlan, largest: float) -> NDArray[np.float64]:
    """(class,) class_norms; format 6 had one rule for all classes, ``8 n eps |w| max|x|``, which these give again."""
    if header["format"] == FORMAT_WITHOUT_CLASS_NORMS:
        return np.full(plan.n_classes, plan.n_features * largest)
    class_norms = np.asarray(header["class_norms"], dtype=np.float64)
    if class_norms.shape != (plan.n_classes,) or not (np.isfinite(class_norms) & (class_norms >= 0)).all():
        raise ValueError(f"class_norms of {plan.n_classes} classes")
    return class_norms


def _stored_selection(
    store: ModelStore, settings: FitSettings, n_classes: int
) -> tuple[NDArray[np.int64], NDArray[np.float64] | None]:
    """(class, rank) selected nodes, or (1, rank) shared ones with the overlap after each of them."""
    selected, overlaps = store.read("selection"), None
    most, shape = settings.n_selected, (n_classes, settings.n_selected)
    if settings.selection == "joint":
        most, overlaps = settings.n_selected * n_classes, store.read("overlaps")
        shape = (1, len(overlaps))
    in_range = selected.size and selected.min() >= -1 and selected.max() < settings.n_nodes
    if selected.shape != shape or shape[1] > most or not in_range:
        raise StoreFormatError(
            f"{store.url} is damaged: selection is not {settings.n_selected} nodes per class; restore or refit it"
        )
    if overlaps is not None and not (overlaps >= 0).all():
        raise StoreFormatError(f"{store.url} is damaged: overlaps has values that no fit writes; restore or refit it")
    return selected, overlaps


def _stored_parameters(
    store: ModelStore, settings: FitSettings, job: FitJob, selected: NDArray[np.int64]
) -> NetworkParameters:
    nodes, rule = store.read("selected/nodes"), settings.density_options.rule
    if settings.keeps_tables:
        return _stored_tables(store, settings, job, selected)
    projections = store.read("selected/projections")
    return NetworkParameters(
        preprocessing=job.preprocessing,
        nodes=nodes,
        weights=store.read("selected/weights"),
        projections=projections,
        class_slices=job.plan.class_slices,
        bandwidth=store.read("selected/bandwidth"),
        location=_stored_location(store, settings, job, projections),
        spread=store.read("selected/spread"),
        member=class_members(nodes, selected, job.plan.n_classes),
        log_priors=np.log(job.priors),
        rule=rule,
        learned={name: store.read(f"selected/{name}") for name in rule.stored_arrays},
    )


def _stored_tables(
    store: ModelStore, settings: FitSettings, job: FitJob, selected: NDArray[np.int64]
) -> NetworkParameters:
    """The parameters of a model that keeps tables."""
    nodes, rule, weights = store.read("selected/nodes"), settings.density_options.rule, store.read("selected/weights")
    member = class_members(nodes, selected, job.plan.n_classes)
    bandwidth = store.read("selected/bandwidth")
    arrays = {name: store.read(f"tables/{name}") for name in ("densities", "sums", "cells", "outermost")}
    try:
        for name, values in arrays.items():
            if not np.isfinite(values).all():
                raise ValueError(f"tables/{name} has values that no fit writes")
        tables = from_arrays(arrays, bandwidth)
        used = {(k, u) for k, of_class in enumerate(rule.used_nodes(member)) for u in of_class}
        counts = job.plan.class_counts
        if set(tables) != used or any(density.n_samples != counts[k] for (k, _), density in tables.items()):
            raise ValueError("its tables are not those of its classes and nodes")
    except (ValueError, IndexError) as error:
        raise StoreFormatError(f"{store.url} is damaged: {error}; restore or refit it") from error
    samples, reread = _stored_training(store), None
    if samples is not None:
        reread = TrainingSamples.of(job, samples, weights, store.header["identity"]["samples"])
    return NetworkParameters(
        preprocessing=job.preprocessing,
        nodes=nodes,
        weights=weights,
        projections=store.read("tables/picked"),
        class_slices=picked_slices(job.plan.class_slices),
        bandwidth=bandwidth,
        location=store.read("selected/location"),
        spread=store.read("selected/spread"),
        member=member,
        log_priors=np.log(job.priors),
        rule=rule,
        tables=tables,
        reread=reread,
    )


def _stored_training(store: ModelStore) -> ZarrAddress | NpyAddress | None:
    """Where the training samples are that a model with tables reads again, if it knows."""
    training = store.header.get("training")
    if not training:
        return None
    try:
        kind = {"zarr": ZarrAddress, "npy": NpyAddress}[training["kind"]]
        return kind(**{name: str(value) for name, value in training.items() if name != "kind"})
    except (KeyError, TypeError, AttributeError) as error:
        raise StoreFormatError(
            f"{store.url} is damaged: its header has no address of training samples in {training!r:.60}; "
            "restore or refit it"
        ) from error


def _stored_location(
    store: ModelStore, settings: FitSettings, job: FitJob, projections: NDArray[np.float32]
) -> NDArray[np.float64]:
    """(class, u) location; formats 6 and 7 did not store it, so it is measured again there."""
    if store.header["format"] >= FORMAT_OF_JOINT_MODELS:
        return store.read("selected/location")
    measure = LOCATIONS[settings.location]
    return np.array([measure(SortedRows(projections[:, columns])) for columns in job.plan.class_slices])


def _impossible_array(parameters: NetworkParameters, job: FitJob, selected: NDArray[np.int64], classes: NDArray) -> str:
    """Name of the first stored array with values that no fit writes, or an empty string."""
    numbers = {
        "shift": job.preprocessing.shift,
        "scale": job.preprocessing.scale,
        "selected/weights": parameters.weights,
        "tables/picked" if parameters.tables else "selected/projections": parameters.projections,
        "selected/bandwidth": parameters.bandwidth,
        "selected/location": parameters.location,
        "selected/spread": parameters.spread,
        **{f"selected/{name}": values for name, values in parameters.learned.items()},
    }
    for name, values in numbers.items():
        if values is not None and not np.isfinite(values).all():
            return name
    if not (parameters.bandwidth > 0).all():
        return "selected/bandwidth"
    if not np.array_equal(parameters.nodes, np.unique(selected[selected >= 0])) or not len(parameters.nodes):
        return "selected/nodes"
    if classes.ndim != 1 or classes.dtype.kind not in "biufUO" or len(np.unique(classes)) != len(classes):
        return "its list of classes"
    return ""


def _stored_importances(store: ModelStore) -> NDArray[np.float64] | None:
    """(class, feature) importances; None in a store of an older format, if an older fxdask finished it."""
    if store.header["format"] in FORMATS_WITHOUT_IMPORTANCES and "importances" not in store:
        return None
    return store.read("importances")


def _impossible_importances(importances: NDArray[np.float64] | None) -> str:
    """The name of the array if it has values that are no correlations, or an empty string."""
    return "" if importances is None or (np.abs(importances) <= 1).all() else "importances"


def _settings_from_json(stored: Mapping[str, Any]) -> FitSettings:
    stored = {**EARLIER_SETTINGS, **stored}
    settings = FitSettings(**{field.name: stored[field.name] for field in fields(FitSettings)})
    return replace(settings, priors=tuple(settings.priors)) if isinstance(settings.priors, list) else settings


def _classes_from_json(stored: Mapping[str, Any]) -> NDArray:
    # NumPy reads a text as Python code if it has commas or brackets.
    if not LABEL_TYPE.fullmatch(stored["dtype"]):
        raise ValueError(f"classes have the type {stored['dtype']!r}")
    dtype = np.dtype(stored["dtype"])
    if dtype.itemsize > MOST_LABEL_BYTES:
        raise ValueError(f"classes have {dtype.itemsize} bytes each but may have {MOST_LABEL_BYTES}")
    if dtype.kind == "O" and not all(isinstance(value, str) for value in stored["values"]):
        raise ValueError("classes of dtype object must be strings")
    with np.errstate(over="ignore", invalid="ignore"):
        classes = np.array(stored["values"], dtype=dtype)
    if classes.tolist() != stored["values"]:
        raise ValueError(f"classes have values that {dtype} does not hold")
    return classes
