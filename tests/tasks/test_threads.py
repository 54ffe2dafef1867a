from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier

from threadpoolctl import ThreadpoolController

from fxdask.tasks.threads import one_blas_thread


def blas_threads():
    return {library["num_threads"] for library in ThreadpoolController().info() if library["user_api"] == "blas"}


def test_overlapping_uses_share_one_limit_and_restore_it():
    with ThreadpoolController().limit(limits=2, user_api="blas"):
        both_in, one_out = Barrier(2), Barrier(2)

        def leaves_first():
            with one_blas_thread():
                both_in.wait()
            one_out.wait()

        def leaves_last():
            with one_blas_thread():
                both_in.wait()
                one_out.wait()
                return blas_threads()

        with ThreadPoolExecutor(2) as pool:
            pool.submit(leaves_first)
            inside = pool.submit(leaves_last).result()
        assert inside == {1}
        assert blas_threads() == {2}


def test_the_limit_is_restored_after_an_error():
    @one_blas_thread()
    def fails():
        seen.append(blas_threads())
        raise RuntimeError

    seen = []
    with ThreadpoolController().limit(limits=2, user_api="blas"):
        for _ in range(2):
            with suppress(RuntimeError):
                fails()
        assert seen == [{1}, {1}]
        assert blas_threads() == {2}
