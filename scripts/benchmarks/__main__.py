"""Run a benchmark by its name: scripts/bench fit [--repeats 5] [--json FILE]."""

import click

from benchmarks.accuracy import accuracy
from benchmarks.classes import classes
from benchmarks.cluster import cluster
from benchmarks.compare import compare
from benchmarks.density import density
from benchmarks.divergences import divergences
from benchmarks.everything import everything
from benchmarks.fit import fit
from benchmarks.images import images
from benchmarks.joint import joint
from benchmarks.labels import labels
from benchmarks.load import load
from benchmarks.madelon import madelon
from benchmarks.plan import plan
from benchmarks.predict import predict
from benchmarks.probabilities import probabilities
from benchmarks.rank import rank
from benchmarks.reproduce import reproduce
from benchmarks.samples import samples
from benchmarks.scale import scale
from benchmarks.score import score
from benchmarks.small_classes import small_classes
from benchmarks.structured import structured


@click.group(context_settings={"show_default": True})
def benchmarks() -> None:
    """Measure fxdask. Every figure is a ratio within one run, so that machines can be compared."""


benchmarks.add_command(accuracy)
benchmarks.add_command(classes)
benchmarks.add_command(cluster)
benchmarks.add_command(compare)
benchmarks.add_command(density)
benchmarks.add_command(divergences)
benchmarks.add_command(everything)
benchmarks.add_command(fit)
benchmarks.add_command(images)
benchmarks.add_command(joint)
benchmarks.add_command(labels)
benchmarks.add_command(load)
benchmarks.add_command(madelon)
benchmarks.add_command(plan)
benchmarks.add_command(predict)
benchmarks.add_command(probabilities)
benchmarks.add_command(rank)
benchmarks.add_command(reproduce)
benchmarks.add_command(score)
benchmarks.add_command(samples)
benchmarks.add_command(scale)
benchmarks.add_command(small_classes)
benchmarks.add_command(structured)
benchmarks(prog_name="scripts/bench")
