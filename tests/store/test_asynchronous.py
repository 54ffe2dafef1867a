"""Coroutines of Zarr stores run on Zarr's event loop, from any thread and in forked processes."""

import asyncio
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import zarr
from zarr.storage import LocalStore, MemoryStore

from fxdask.store import asynchronous
from fxdask.store.asynchronous import run, run_at


async def current_loop():
    return asyncio.get_running_loop()


async def double(value):
    await asyncio.sleep(0)
    return 2 * value


def test_a_coroutine_returns_its_result():
    assert run(double(21)) == 42


def test_an_exception_in_a_coroutine_reaches_the_caller():
    async def fail():
        raise FileNotFoundError("samples")

    with pytest.raises(FileNotFoundError, match="samples"):
        run(fail())


def test_coroutines_run_on_the_loop_that_zarr_uses():
    """Connections of an object store work only on the loop that opened them."""
    loops = []

    class RecordingStore(MemoryStore):
        async def set(self, *args, **named):
            loops.append(asyncio.get_running_loop())
            await super().set(*args, **named)

    zarr.create_array(RecordingStore(), data=np.arange(3))
    assert {run(current_loop()), *loops} == {loops[0]}


def test_local_folders_are_used_in_the_calling_thread(tmp_path):
    async def thread():
        return await asyncio.to_thread(threading.current_thread)

    assert run_at(LocalStore(tmp_path), thread()) is threading.current_thread()
    assert run_at(MemoryStore(), thread()) is not threading.current_thread()


def test_what_an_error_leaves_unfinished_is_not_continued_by_the_next_call(tmp_path):
    written = []

    async def write_later():
        await asyncio.sleep(0.005)
        written.append("of the failed call")

    async def fail():
        raise OSError("full")

    async def both():
        await asyncio.gather(write_later(), fail())

    store = LocalStore(tmp_path)
    with pytest.raises(OSError, match="full"):
        run_at(store, both())
    assert run_at(store, double(21)) == 42
    run_at(store, asyncio.sleep(0.02))
    assert written == []


def test_a_forked_child_makes_loops_of_its_own(tmp_path):
    store = LocalStore(tmp_path)
    here = run_at(store, current_loop())
    child = os.fork()
    if child == 0:
        os._exit(0 if run_at(store, current_loop()) is not here else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert run_at(store, current_loop()) is here


def test_threads_share_one_loop(monkeypatch):
    monkeypatch.setattr(asynchronous, "_found", None)
    start, loops = threading.Barrier(8), []

    def work():
        start.wait()
        loops.append(run(current_loop()))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loops) == 8
    assert len(set(loops)) == 1


def test_a_thread_with_its_own_running_loop_can_wait():
    async def caller():
        return run(double(4))

    assert asyncio.run(caller()) == 8


def test_waiting_on_the_loop_itself_is_an_error():
    async def nested():
        return run(double(1))

    with pytest.raises(RuntimeError, match="use await"):
        run(nested())


def test_a_zarr_without_a_loop_is_reported(monkeypatch):
    monkeypatch.setattr(asynchronous, "_found", None)
    monkeypatch.setattr(asynchronous.zarr, "open_group", lambda *_, **__: None)
    work = double(1)
    with pytest.raises(RuntimeError, match=f"event loop of zarr {zarr.__version__}"):
        run(work)


FORK = """
import os, sys
from fxdask.store.asynchronous import run

async def process():
    return os.getpid()

assert run(process()) == os.getpid()
child = os.fork()
if child == 0:
    os._exit(0 if run(process()) == os.getpid() else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_uses_its_own_loop():
    result = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
