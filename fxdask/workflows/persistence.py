"""The store of a fit: opened or created for a request, refused if it holds another job, filled with the model."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fxdask.errors import StoreExistsError, WeightStreamError
from fxdask.kernels.density.summed import as_arrays
from fxdask.planning.fit_plan import FitPlan
from fxdask.sizes import format_bytes
from fxdask.store.group import check_room, peek_header
from fxdask.store.model import ModelStore
from fxdask.store.sources import NpyAddress, ZarrAddress
from fxdask.tasks.reread import TrainingSamples
from fxdask.workflows.model import FittedModel, weight_fingerprint
from fxdask.workflows.model_request import ModelRequest
from fxdask.workflows.settings import EARLIER_SETTINGS

__all__ = ["open_or_create", "stored_seed", "write_model"]

log = logging.getLogger(__name__)


def open_or_create(url: str, header: Mapping[str, Any] | None, request: ModelRequest) -> ModelStore:
    """Open the store that has this header after checking that it holds this request, or create a new one."""
    needed = request.plan.store_bytes(request.copied_bytes + request.pool_bytes)
    if header is not None and _is_outdated(header, request.identity()):
        log.warning("starting %s from the beginning: an older fxdask created it and did not finish it", url)
        header = None
    if header is not None:
        _refuse_other_job(url, header, request.identity())
        store = ModelStore.open(url, "r+", finished=False)
        store.check_shape(request.shape)
        _check_weight_fingerprint(store, request.settings.seed, request.plan)
        if not header["finished"]:
            check_room(url, int(needed * (1 - store.blocks_done().mean())))
        return store
    check_room(url, needed)
    data = request.data
    facts = {
        "identity": request.identity(),
        "job": request.job,
        "density": request.settings.density,
        "normalize_requested": request.normalize_requested,
        "classes": _classes_to_json(data.classes),
        "names": None if data.samples.names is None else [str(name) for name in data.samples.names],
    }
    log.info("creating %s, at most %s", url, format_bytes(needed))
    return ModelStore.create(url, request.shape, facts, weight_fingerprint(request.settings.seed, request.plan))


def _differences(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Everything in which two identities differ: (stored, wanted) by name; either may leave earlier settings out."""
    found, requested = {**EARLIER_SETTINGS, **stored}, {**EARLIER_SETTINGS, **wanted}
    if requested["selection"] == "top":
        del requested["pool_size"]  # which it does not use
    return {key: (found.get(key), value) for key, value in requested.items() if found.get(key) != value}


def _is_outdated(header: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether this is the same fit, unfinished, by a version that had another rule for spreads of zero."""
    same_kind = header.get("kind") == "model" and not header["finished"]
    return (
        same_kind
        and "zero_tolerance" not in header.get("identity", {})
        and list(_differences(header.get("identity", {}), wanted)) == ["zero_tolerance"]
    )


def stored_seed(url: str) -> int | None:
    """The seed of the model at this path, finished or not; None if there is no model."""
    header = peek_header(url) or {}
    return header.get("identity", {}).get("seed")


def _refuse_other_job(url: str, header: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    if header.get("kind") != "model":
        raise StoreExistsError(f"{url} holds {header.get('kind')!r}, not a model; choose another path")
    named = {
        "samples": "other samples",
        "samples_dtype": "samples of another dtype",
        "labels": "other labels",
        "zero_tolerance": "another rule for spreads that count as zero",
    }
    differences = [
        named.get(key) or f"{key}={stored!r} instead of {requested!r}"
        for key, (stored, requested) in _differences(header.get("identity", {}), wanted).items()
    ]
    if differences:
        raise StoreExistsError(
            f"{url} holds a model made from {', '.join(differences)}; "
            "choose another path, or pass overwrite=True to replace it"
        )


def _check_weight_fingerprint(store: ModelStore, seed: int, plan: FitPlan) -> None:
    if not np.array_equal(store.read("canaries"), weight_fingerprint(seed, plan)):
        raise WeightStreamError(
            f"NumPy {np.__version__} draws other weights than the NumPy that made {store.url}; "
            "install that version, or fit into a new store"
        )


def write_model(store: ModelStore, model: FittedModel) -> None:
    """Write the arrays that prediction needs, and then mark the model as finished."""
    job, parameters = model.job, model.scorer.parameters
    arrays: dict[str, NDArray | None] = {
        "labels": job.codes[: job.plan.n_samples].astype(np.int32),
        "priors": job.priors,
        "class": model.classes,
        "shift": job.preprocessing.shift,
        "scale": job.preprocessing.scale,
        "selection": model.selected_nodes,
        "overlaps": model.overlaps,
        "importances": model.importances,
        "selected/density_error": model.density_error,
    }
    for name in ("nodes", "weights", "projections", "bandwidth", "location", "spread"):
        arrays[f"selected/{name}"] = getattr(parameters, name)
    if parameters.tables:
        arrays["tables/picked"] = arrays.pop("selected/projections")
        arrays |= {f"tables/{name}": values for name, values in as_arrays(parameters.tables).items()}
    for name in parameters.rule.stored_arrays:
        arrays[f"selected/{name}"] = parameters.learned[name]
    store.write({name: values for name, values in arrays.items() if values is not None})
    store.drop()
    store.finish(
        largest=job.preprocessing.largest,
        class_norms=job.class_norms.tolist(),
        source_counts=model.source_counts.tolist(),
        bandwidth_fallbacks=model.bandwidth_fallbacks,
        temperature=model.temperature,
        **(_table_facts(model) if parameters.tables else {}),
    )


def _table_facts(model: FittedModel) -> dict[str, Any]:
    """What the header of a model with tables has besides: the classes' counts, and where its samples are."""
    reread = model.scorer.parameters.reread
    samples = reread.samples if isinstance(reread, TrainingSamples) else None
    address = None
    if isinstance(samples, (ZarrAddress, NpyAddress)):
        address = {"kind": "zarr" if isinstance(samples, ZarrAddress) else "npy", **asdict(samples)}
    return {"class_counts": list(model.job.plan.class_counts), "training": address}


def _classes_to_json(classes: NDArray) -> dict[str, Any]:
    return {"dtype": classes.dtype.str, "values": classes.tolist()}
