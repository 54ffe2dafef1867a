"""Python programs in processes of their own, forked from one that has imported what most of them need.

Importing takes a new process up to four seconds, a forked one nothing. Tests of what Python does
when it starts (settings of BLAS, other packages, imports) start it by ``subprocess``.
"""

import multiprocessing
import os
import runpy
import sys
import tempfile
import time
from pathlib import Path

import dask

IMPORTED = (
    "dask.__main__",
    "distributed.cli.dask_scheduler",
    "distributed.cli.dask_worker",
    "fxdask.cli.fit",
    "fxdask.cli.rank",
    "fxdask.cli.reproduce",
    "fxdask.cli.score",
    "fxdask.tasks.fit",
    "fxdask.tasks.score",
    "numba",
)
FORKED = sys.platform == "linux"  # libraries of other systems cannot be used after a fork
SECONDS_TO_END = 60

context = multiprocessing.get_context("forkserver" if FORKED else "spawn")
context.set_forkserver_preload(list(IMPORTED))


class PythonProcess:
    """``python -m MODULE ARGUMENTS`` or ``python -c PROGRAM ARGUMENTS``, with the methods of ``subprocess.Popen``."""

    def __init__(self, *words, folder=".", **environment):
        self._output = tempfile.TemporaryDirectory()
        for name in ("stdout", "stderr"):
            Path(self._output.name, name).touch()  # a process that is killed at once writes none
        self._process = context.Process(
            target=_run,
            args=(list(map(str, words)), str(folder), {**os.environ, **environment}, self._output.name),
            daemon=True,
        )
        self._process.start()
        self.pid = self._process.pid

    def poll(self):
        return self._process.exitcode

    returncode = property(poll)

    def wait(self, timeout=SECONDS_TO_END):
        self._process.join(timeout)
        if self._process.is_alive():
            raise TimeoutError(f"the process still runs after {timeout} s")
        return self._process.exitcode

    def communicate(self, timeout=SECONDS_TO_END):
        """Wait for the end -> standard output and standard error."""
        self.wait(timeout)
        return tuple(Path(self._output.name, name).read_text() for name in ("stdout", "stderr"))

    def send_signal(self, number):
        os.kill(self.pid, number)

    def kill(self):
        self._process.kill()


def run_python(*words, **options):
    """Run a program to its end -> exit status, standard output and standard error."""
    process = PythonProcess(*words, **options)
    out, err = process.communicate()
    return process.returncode, out, err


def _run(words, folder, environment, output):
    """In the new process: become the program."""
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    for number, name in ((1, "stdout"), (2, "stderr")):
        opened = os.open(Path(output, name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, number)
        os.close(opened)
    dask.config.refresh()  # it was read from the environment of another process
    option, program, *arguments = words
    if option == "-m":
        sys.argv = [program, *arguments]
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        sys.argv = [option, *arguments]
        exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
