"""Paths at which no store can be written, and finished stores in folders in which nothing can be written."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from small import X, Y, fit, one_sentence

import fxdask
from fxdask.errors import InvalidInputError

CALLS = {
    "fit": lambda path: fit(store=path),
    "score": lambda path: fxdask.batch_score(fit(), X, path),
    "rank": lambda path: fxdask.rank_features(X, Y, ["pearson"], store=path),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_links_that_lead_nowhere_are_refused(tmp_path, call):
    link = tmp_path / "link.zarr"
    link.symlink_to(tmp_path / "nowhere.zarr")
    with pytest.raises(InvalidInputError, match=r"is a link to .*nowhere.zarr, which does not exist") as error:
        call(link)
    one_sentence(error)
    assert [path.name for path in tmp_path.iterdir()] == ["link.zarr"]


@pytest.mark.parametrize(("call", "letter"), zip(CALLS.values(), "nén", strict=True), ids=CALLS)
def test_names_that_leave_no_room_for_hidden_files_are_refused(tmp_path, call, letter):
    longest = letter * (215 // len(letter.encode()))
    call(tmp_path / longest)
    with pytest.raises(InvalidInputError, match=r"has 21[67] bytes but a store's may have 215") as error:
        call(tmp_path / (longest + letter))
    one_sentence(error)
    assert [path.name for path in tmp_path.iterdir()] == [longest]


PROGRAM = """
import sys
import numpy as np
import fxdask
X, y = np.load("X.npy"), np.load("y.npy")
clf = fxdask.FisherNetworkClassifier(50, 3, store="m.zarr").fit(X, y)
print(fxdask.load("m.zarr").n_features_in_, clf.predict(X[:1]))
fxdask.batch_score("m.zarr", "X.npy", "s.zarr", y)
fxdask.rank_features("X.npy", y, ["pearson"], store="r.zarr")
try:
    clf.set_params(n_selected=2).fit(X, y)
except fxdask.errors.StoreExistsError as error:
    print("refused")
try:
    clf.set_params(store="new.zarr").fit(X, y)
except fxdask.errors.StoreWriteError as error:
    print(error)
"""
READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && cd "$0" && exec "$@"'
AS_ROOT = ["unshare", "--mount", "sh", "-c", READ_ONLY]
CAN_MOUNT = os.geteuid() != 0 or (
    shutil.which("unshare") is not None
    and subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode == 0
)


@pytest.mark.skipif(not CAN_MOUNT, reason="root can write anywhere but on a read-only mount, which needs a namespace")
def test_finished_stores_in_a_read_only_folder_are_used(tmp_path):
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", Y)
    fit(store=tmp_path / "m.zarr")
    fxdask.batch_score(tmp_path / "m.zarr", tmp_path / "X.npy", tmp_path / "s.zarr")
    fxdask.rank_features(tmp_path / "X.npy", Y, ["pearson"], store=tmp_path / "r.zarr")
    tmp_path.chmod(0o555)
    before = [*AS_ROOT, str(tmp_path)] if os.geteuid() == 0 else []
    run = subprocess.run(
        [*before, sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    tmp_path.chmod(0o755)
    assert run.returncode == 0, run.stderr
    loaded, refused, unwritable = run.stdout.splitlines()
    assert loaded.startswith("4 [")
    assert refused == "refused"
    assert unwritable.startswith("could not write to ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["X.npy", "m.zarr", "r.zarr", "s.zarr", "y.npy"]
