"""The paper's experiment: invalid arguments, damaged results and unusual images."""

import json

import dask
import numpy as np
import pytest
from command_line import run_here
from distributed import Client
from experiment.small_runs import small
from idx_files import write_idx_folder

import fxdask
from fxdask.errors import ClusterError, InvalidInputError, MemoryPlanError, StoreFormatError
from fxdask.planning.machine import SHARE_OF_LIMIT
from fxdask.tasks.telemetry import resident_bytes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cifar"], "is not one of 'mnist', 'fashion_mnist', 'digits'"),
        (["digits", "--pairs", "0,1"], "'0,1' is not a list of pairs such as 0-1,3-8"),
        (["digits", "--seeds", "0"], "seeds must be a whole number of at least 1"),
        (["digits", "--seeds", "-1,"], "whole numbers from 0 to 2^63 - 1"),
        (["digits", "--seeds", "99999999999999"], "at most 1,000,000 seeds"),
        (["digits", "--pairs", "0-0"], "pairs must be two different classes from 0 to 9"),
        (["digits", "--pairs", "0-12"], "pairs must be two different classes from 0 to 9"),
        (["digits", "--seeds", "some"], "'some' is neither a number nor a list such as 3,5"),
        (["digits", "--nodes", "5", "--selected", "6"], "--selected 6 is more than --nodes 5"),
        (["digits", "--rules", "sum,best"], "'best' is not known; choose one of 'sum', 'scaled', 'log', 'joint'"),
        (["digits", "--rules", ""], "rules='' is not known; choose one of"),
        (["digits", "--selection", "top,sum"], "'sum' is not known; choose one of 'top', 'joint'"),
    ],
)
def test_wrong_command_line_arguments_are_refused(tmp_path, arguments, message):
    run = run_here(tmp_path, "reproduce", *arguments)
    assert run.returncode == 2
    assert message in run.stderr
    assert not list(tmp_path.iterdir())


DAMAGED = {"format": 1, "identity": {}, "facts": {}}


SEED = {"seconds": 1.0, "processes": {}, "pairs": {}}


def counted(tested, extended, fisher):
    return {"tested": tested, "fallbacks": 0, "correct": {"extended_fisher": extended, "fisher": fisher}}


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        "[1]",
        "[" * 100_000,
        '{"mine": 1}',
        json.dumps(DAMAGED | {"seeds": {"0": {"pairs": 3}}}),
        json.dumps(DAMAGED | {"seeds": {"first": SEED}}),
        json.dumps(DAMAGED | {"identity": [], "seeds": {}}),
        json.dumps(DAMAGED | {"seeds": {"0": SEED | {"processes": {"a": {}}}}}),
        json.dumps(DAMAGED | {"seeds": {"0": SEED | {"seconds": None}}}),
        json.dumps(DAMAGED | {"seeds": {k: SEED | {"pairs": {"0-1": counted(9 + int(k), 1, 1)}} for k in "01"}}),
        *(
            json.dumps(DAMAGED | {"seeds": {"0": SEED | {"pairs": {"0-1": count}}}})
            for count in (
                counted(10, 11, 1),
                counted(10, -1, 1),
                counted(0, 0, 0),
                counted(10, float("nan"), 0),
                counted(10, 5.5, 0),
                counted("10", 1, 0),
                {"tested": 10, "fallbacks": 0, "correct": {"fisher": 0}},
            )
        ),
        *(
            json.dumps(DAMAGED | {"identity": identity, "seeds": {"0": SEED | {"pairs": {"0-1": counted(10, 5, 5)}}}})
            for identity in ({"rules": ["sum", "joint"]}, {"selections": ["top", "joint"]}, {"rules": 3})
        ),
    ],
)
def test_damaged_results_are_refused(folder, tmp_path, content, overwrite):
    (tmp_path / "results.json").write_text(content)
    with pytest.raises(StoreFormatError, match=r"results.json is damaged or not a results file .*; move it away"):
        small(folder, out=tmp_path, seeds=1, overwrite=overwrite)
    assert (tmp_path / "results.json").read_text() == content
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"seeds": 0}, "seeds must be a whole number of at least 1"),
        ({"seeds": [1, -1]}, r"whole numbers from 0 to 2\^63 - 1"),
        ({"seeds": [2**70]}, r"whole numbers from 0 to 2\^63 - 1"),
        ({"seeds": 1.5}, "seeds must be"),
        ({"pairs": []}, "pairs is empty"),
        ({"pairs": [(0, 0)]}, "pairs must be two different classes from 0 to 9"),
        ({"pairs": [(0, 10)]}, "pairs must be two different classes from 0 to 9"),
        ({"pairs": [0, 1]}, "pairs must be two different classes"),
        ({"n_selected": 61}, "n_selected=61 is more than n_nodes=60"),
        ({"n_nodes": 0}, "n_nodes must be a whole number"),
        ({"pairs": [("0", "1")]}, "pairs must be two different classes"),
        ({"pairs": [(float("inf"), 1)]}, "pairs must be two different classes"),
        ({"nodes_per_block": 0}, "nodes_per_block must be a whole number"),
        ({"nodes_per_block": "x"}, "nodes_per_block must be a whole number"),
        ({"memory_limit": "much"}, "memory_limit"),
        ({"mean_shift": "no"}, "mean_shift must be True or False, not 'no'"),
        ({"rules": ["sum", "best"]}, "'best' is not known; choose one of 'sum', 'scaled', 'log', 'joint'"),
        ({"rules": [["sum"]]}, r"\['sum'\] is not known; choose one of"),
        ({"rules": []}, "rules must be one or more of 'sum', 'scaled', 'log', 'joint', not"),
        ({"rules": None}, "rules must be one or more of 'sum', 'scaled', 'log', 'joint', not None"),
        ({"selections": "best"}, "'best' is not known; choose one of 'top', 'joint'"),
        ({"selections": ()}, "selections must be one or more of 'top', 'joint', not"),
        ({"out": 5}, "out must be a path, not 5"),
        ({"out": "s3://bucket/x"}, "out must be a folder on a disk, not s3://bucket/x"),
    ],
)
def test_invalid_parameters_are_refused(folder, parameters, message):
    with pytest.raises(InvalidInputError, match=message):
        small(folder, **parameters)


def test_classes_without_images_are_refused(tmp_path):
    rng = np.random.default_rng(0)
    labels = np.arange(40) % 9
    images = rng.integers(0, 256, (40, 3, 3))
    folder = write_idx_folder(tmp_path / "idx", images, labels, images, labels)
    with pytest.raises(InvalidInputError, match="class 9 has 0 training and 0 test images; 2 and 1 are needed"):
        fxdask.reproduce("mnist", folder, seeds=1, n_nodes=20, n_selected=2)
    got = fxdask.reproduce("mnist", folder, seeds=1, n_nodes=20, n_selected=2, pairs=[(7, 8)])
    assert 0 <= got.accuracy["fisher"].item() <= 100


@pytest.mark.filterwarnings("ignore::fxdask.errors.ZeroSpreadWarning")
def test_constant_images_are_refused(tmp_path):
    images, labels = np.full((40, 3, 3), 7), np.arange(40) % 10
    folder = write_idx_folder(tmp_path / "idx", images, labels, images, labels)
    for mean_shift in (True, False):
        with pytest.raises(InvalidInputError, match="every image is constant"):
            fxdask.reproduce("mnist", folder, seeds=1, n_nodes=20, n_selected=2, mean_shift=mean_shift)


@pytest.mark.filterwarnings("ignore::fxdask.errors.ZeroSpreadWarning")
def test_a_class_of_equal_images_is_evaluated(tmp_path):
    images, labels = np.random.default_rng(0).integers(0, 256, (60, 3, 3)), np.arange(60) % 10
    images[labels == 1] = images[1]
    folder = write_idx_folder(tmp_path / "idx", images, labels, images, labels)
    got = fxdask.reproduce("mnist", folder, seeds=2, n_nodes=40, n_selected=2, pairs=[(0, 1), (1, 2), (2, 3)])
    assert got.accuracy["extended_fisher"].shape == (3, 2)
    assert got.results.facts["fallbacks"] > 0
    got.to_html(tmp_path / "report.html")


@pytest.mark.filterwarnings("ignore::fxdask.errors.ZeroSpreadWarning")
@pytest.mark.parametrize("is_blank", [False, True])
def test_a_class_of_equal_images_can_be_selected_jointly(tmp_path, is_blank):
    """Blank images are all zero once they are normalised, so their class has neither a spread nor a size."""
    images, labels = np.random.default_rng(0).integers(0, 256, (100, 3, 3)), np.arange(100) % 10
    images[labels != 2 if is_blank else labels == 1] = 7 if is_blank else images[1]
    folder = write_idx_folder(tmp_path / "idx", images, labels, images, labels)
    got = fxdask.reproduce(
        "mnist", folder, seeds=1, n_nodes=40, n_selected=2, pairs=[(0, 2), (1, 2)], rules="joint", selections="joint"
    )
    assert all(((accuracy >= 50) & (accuracy <= 100)).all() for accuracy in got.accuracy.values())
    got.to_html(tmp_path / "report.html")


def test_candidates_that_do_not_fit_into_memory_are_refused(folder):
    def limit(per_task):
        return int((resident_bytes() + 2 * per_task) / SHARE_OF_LIMIT)

    many = {"seeds": 1, "pairs": [(0, 1)], "n_nodes": 3000, "n_selected": 100}
    message = r"joint selection of a pair among 2,000 candidates needs .* MiB but a task may use .* MiB; reduce"
    with dask.config.set(num_workers=2):
        with pytest.raises(MemoryPlanError, match=message):
            small(folder, selections="joint", memory_limit=limit(200 * 2**20), **many)
        assert small(folder, memory_limit=limit(200 * 2**20), **many).accuracy["fisher"].shape == (1, 1)


def test_classes_without_training_images_are_left_out(tmp_path):
    images, labels = np.random.default_rng(0).integers(0, 256, (200, 3, 3)), np.arange(200) % 10
    train = labels != 5
    folder = write_idx_folder(tmp_path / "idx", images[train], labels[train], images, labels)
    got = fxdask.reproduce("mnist", folder, seeds=1, n_nodes=40, n_selected=2, pairs=[(4, 6)])
    assert got.results.tested.tolist() == [40]


def test_a_cluster_needs_a_folder(folder):
    with (
        dask.config.set({"distributed.admin.system-monitor.gil.enabled": False}),
        Client(processes=False, dashboard_address=None, n_workers=1),
        pytest.raises(ClusterError, match="pass a folder that all of its workers can reach"),
    ):
        small(folder)
