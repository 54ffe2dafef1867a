"""A small run of the paper's experiment, which several test files share."""

import fxdask

PAIRS = [(0, 1), (3, 8), (4, 9)]


def small(folder, **parameters):
    return fxdask.reproduce(
        "mnist", folder, **{"seeds": 2, "pairs": PAIRS, "n_nodes": 60, "n_selected": 3} | parameters
    )
