"""Samples whose content changes while a job reads them, although their shape stays."""

import dask.array as da
import numpy as np
import pytest
import zarr
from dask import delayed
from small import X, Y, fit, one_sentence

import fxdask
from fxdask.errors import ChangedSamplesError
from fxdask.execution import fit as fit_graphs
from fxdask.execution import score as score_graphs
from fxdask.workflows import rank, rank_request


@pytest.fixture
def samples(tmp_path):
    np.save(tmp_path / "X.npy", X)
    return tmp_path / "X.npy"


def doing_first(patch, module, name, action):
    """Let a function do something else before its own work."""
    original = getattr(module, name)

    def both(*arguments, **options):
        action()
        return original(*arguments, **options)

    patch.setattr(module, name, both)


@pytest.mark.parametrize("in_store", [False, True])
def test_a_fit_of_changed_samples_is_refused(samples, tmp_path, monkeypatch, in_store):
    store = tmp_path / "m.zarr" if in_store else None
    with monkeypatch.context() as patch:
        doing_first(patch, fit_graphs, "fit_blocks", lambda: np.save(samples, X + 1))
        with pytest.raises(ChangedSamplesError, match=f"at {samples} changed while this call read them") as error:
            fit(samples, store=store)
    one_sentence(error)
    assert [path.name for path in tmp_path.iterdir()] == ["X.npy"]
    assert np.array_equal(fit(samples, store=store).divergences_, fit(X + 1).divergences_)


def test_a_resumed_fit_of_changed_samples_leaves_no_mixture(samples, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(fit_graphs, "fit_blocks", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            fit(samples, store=tmp_path / "m.zarr")
    assert (tmp_path / "m.zarr").exists()
    with monkeypatch.context() as patch:
        doing_first(patch, fit_graphs, "fit_blocks", lambda: np.save(samples, X + 1))
        with pytest.raises(ChangedSamplesError):
            fit(samples, store=tmp_path / "m.zarr")
    assert not (tmp_path / "m.zarr").exists()


def test_files_that_are_only_written_again_are_accepted(samples, monkeypatch):
    with monkeypatch.context() as patch:
        doing_first(patch, fit_graphs, "fit_blocks", lambda: np.save(samples, X))
        fitted = fit(samples)
    assert np.array_equal(fitted.divergences_, fit().divergences_)


def test_a_dask_array_that_gives_other_values_each_time_is_read_once(tmp_path):
    drawn, rng = [], np.random.default_rng(0)

    def draw():
        drawn.append(rng.standard_normal(X.shape))
        return drawn[-1]

    clf = fit(da.from_delayed(delayed(draw, pure=False)(), X.shape, X.dtype), store=tmp_path / "m.zarr")
    assert np.array_equal(clf.divergences_, fit(drawn[0]).divergences_)
    assert len(drawn) == 1


def test_scores_of_changed_samples_are_refused(samples, tmp_path, monkeypatch):
    clf = fit()
    with monkeypatch.context() as patch:
        doing_first(patch, score_graphs, "score", lambda: np.save(samples, X + 1))
        with pytest.raises(ChangedSamplesError):
            fxdask.batch_score(clf, samples, tmp_path / "s.zarr")
    assert [path.name for path in tmp_path.iterdir()] == ["X.npy"]
    fxdask.batch_score(clf, samples, tmp_path / "s.zarr")
    assert np.array_equal(zarr.open_group(tmp_path / "s.zarr")["labels"][:], clf.predict(X + 1))


@pytest.mark.parametrize("in_store", [False, True])
def test_rankings_of_changed_samples_are_refused(samples, tmp_path, monkeypatch, in_store):
    monkeypatch.setattr(rank_request, "SMALL", 0)
    store = tmp_path / "r.zarr" if in_store else None
    with monkeypatch.context() as patch:
        doing_first(patch, rank, "_run", lambda: np.save(samples, X + 1))
        with pytest.raises(ChangedSamplesError):
            fxdask.rank_features(samples, Y, ["pearson"], store=store)
    assert [path.name for path in tmp_path.iterdir()] == ["X.npy"]
