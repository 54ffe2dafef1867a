"""``FisherNetworkClassifier.paper``: the paper's own setting, whatever the defaults of the class are."""

from dataclasses import fields

import numpy as np
import pytest
from sklearn.base import clone

from fxdask import FisherNetworkClassifier
from fxdask.workflows.settings import FitSettings

# What a result depends on, by the names of the parameters; what is kept in a store changes no result.
RESULT = {field.name for field in fields(FitSettings)} - {"seed", "keep_projections", "keep_weights"} | {"random_state"}
SETTING = {
    "n_nodes": 10_000,
    "projection": "gaussian",
    "n_selected": 10,
    "criterion": "extended_fisher",
    "selection": "top",
    "pool_size": "auto",
    "location": "interquartile_mean",
    "spread": "mad",
    "shrink_spread": False,
    "bandwidth": "silverman",
    "bandwidth_spread": None,
    "priors": "equal",
    "combine": "sum",
    "density": "table",
    "normalize": "sample",
    "random_state": 0,
}


def result_parameters(classifier):
    return {name: value for name, value in classifier.get_params().items() if name in RESULT}


def test_it_is_the_setting_of_the_paper():
    assert result_parameters(FisherNetworkClassifier.paper()) == SETTING


def test_it_does_not_depend_on_the_defaults_of_the_class(monkeypatch):
    """Every parameter that a result depends on is passed, also one that is new."""
    constructor = FisherNetworkClassifier.__init__
    monkeypatch.setattr(constructor, "__defaults__", tuple("changed" for _ in constructor.__defaults__))
    monkeypatch.setattr(constructor, "__kwdefaults__", dict.fromkeys(constructor.__kwdefaults__, "changed"))
    assert FisherNetworkClassifier().combine == "changed"
    assert result_parameters(FisherNetworkClassifier.paper()) == SETTING


def test_changes_replace_single_parameters(tmp_path):
    clf = FisherNetworkClassifier.paper(n_nodes=50, normalize=None, store=tmp_path / "m.zarr", verbose=True)
    assert result_parameters(clf) == {**SETTING, "n_nodes": 50, "normalize": None}
    assert clf.store == tmp_path / "m.zarr"
    assert clf.verbose
    assert result_parameters(FisherNetworkClassifier.paper()) == SETTING, "a change does not stay"


def test_unknown_names_are_refused_as_the_constructor_does():
    with pytest.raises(TypeError, match="unexpected keyword argument 'n_node'"):
        FisherNetworkClassifier.paper(n_node=50)


def test_it_fits_as_the_same_parameters_do(two_blobs):
    X, y = two_blobs
    one = FisherNetworkClassifier.paper(n_nodes=100).fit(X, y)
    other = FisherNetworkClassifier(**{**SETTING, "n_nodes": 100}).fit(X, y)
    assert np.array_equal(one.selected_nodes_, other.selected_nodes_)
    assert np.array_equal(one.predict_proba(X), other.predict_proba(X))
    assert clone(one).get_params() == one.get_params()


def test_a_subclass_gives_its_own_instances():
    class Other(FisherNetworkClassifier):
        pass

    assert type(Other.paper()) is Other
