"""Targets: the files of the experiment, and the file by which a scheduler is found."""

import io
import json
import zipfile

import fxdask
from fxdask.execution.connection import ClusterAddress
from fxdask.experiment.example import read_example
from fxdask.experiment.results import ResultsFile

from .engine import Target

PAIR, SEED = (0, 1), 0


def small_experiment(folder):
    """The folder of an experiment of one pair and one seed."""
    fxdask.reproduce("digits", out=folder, seeds=1, pairs=[PAIR], n_nodes=20, n_selected=2, rules=["sum", "log"])
    return folder


class ResultsFiles(Target):
    """``results.json`` of an experiment that an equal call resumes."""

    def valid_files(self):
        content = (small_experiment(self.folder / "run") / "results.json").read_bytes()
        self.identity = json.loads(content)["identity"]
        return [("run/results.json", content)]

    def read(self, place):
        file = ResultsFile(self.folder / place, self.identity)
        if not file.missing(SEED, [PAIR]):
            found = file.results([PAIR], [SEED])
            found.summary(), found.comparison(), found.table()
        file.write_csv(self.folder / "run" / "results.csv")


class Examples(Target):
    """The file of an experiment's example: the archive, and the arrays in it."""

    refuses = False

    def valid_files(self):
        folder = small_experiment(self.folder / "run")
        (self.archive,) = folder.rglob("*.npz")
        self.identity = json.loads((folder / "results.json").read_bytes())["identity"]
        self.place = self.archive.relative_to(self.folder).as_posix()
        with zipfile.ZipFile(self.archive) as archive:
            self.members = {name: archive.read(name) for name in archive.namelist()}
        return [(self.place, self.archive.read_bytes()), *self.members.items()]

    def feed(self, place, content):
        super().feed(self.place, content if place == self.place else self.packed(place, content))

    def packed(self, name, content):
        """The archive with another content of one member."""
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as archive:
            for other, stored in self.members.items():
                archive.writestr(other, content if other == name else stored)
        return stream.getvalue()

    def read(self, place):
        read_example(self.folder / place, self.identity, PAIR, SEED)


class SchedulerFiles(Target):
    """The file that ``dask scheduler --scheduler-file`` writes."""

    def valid_files(self):
        facts = {"type": "Scheduler", "id": "Scheduler-1", "address": "tcp://127.0.0.1:8786", "workers": {}}
        return [("scheduler.json", json.dumps(facts, indent=2).encode())]

    def read(self, place):
        cluster = ClusterAddress(scheduler_file=str(self.folder / place))
        cluster.check()
        assert cluster.resolved
