"""IDX files written for tests."""

import struct

import numpy as np

NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def idx_bytes(array):
    header = struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return header + np.ascontiguousarray(array, np.uint8).tobytes()


def write_idx_folder(folder, train_images, train_labels, test_images, test_labels):
    folder.mkdir()
    for name, array in zip(NAMES, (train_images, train_labels, test_images, test_labels), strict=True):
        (folder / name).write_bytes(idx_bytes(array))
    return folder
