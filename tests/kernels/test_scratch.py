import numpy as np

from fxdask.kernels.scratch import Scratch


def test_memory_is_reused_for_the_same_name():
    scratch = Scratch()
    first = scratch("values", (3, 4))
    first[...] = 7
    again = scratch("values", (2, 6))
    assert again.shape == (2, 6)
    assert again.dtype == np.float32
    assert np.shares_memory(first, again)
    assert (again == 7).all()


def test_different_names_share_no_memory():
    scratch = Scratch()
    assert not np.shares_memory(scratch("values", (5,)), scratch("prepared", (5,)))


def test_a_buffer_grows_and_takes_any_dtype():
    scratch = Scratch()
    scratch("raw", (2,), np.uint8)
    wide = scratch("raw", (100, 3), ">f8")
    assert wide.shape == (100, 3)
    assert wide.dtype == np.dtype(">f8")
    assert scratch("raw", (0, 3)).size == 0
