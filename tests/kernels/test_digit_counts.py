"""Order statistics and distances by counts of digits: against sorted values, for every split into pieces."""

import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernels.criteria.columns import by_class, grouped, labelled_columns

from fxdask.kernels.counted_distances import DistancePasses
from fxdask.kernels.digit_counts import OrderStatisticPasses, PrefixRows, WideMedianPasses, run_passes
from fxdask.kernels.projection import ColumnValues

ROWS = PrefixRows()


def with_missing(values, share):
    values = values.copy()
    values[np.random.default_rng(1).random(values.shape) < share] = np.nan
    return values


def in_pieces(values, codes, per_piece):
    """A function that reads all values, each class one run of a piece."""
    n_classes = int(codes.max()) + 1

    def read():
        for start in range(0, len(codes), per_piece):
            some = slice(start, start + per_piece)
            piece = grouped(values[:, some], codes[some], n_classes)
            yield ColumnValues(piece.values, [runs or [slice(0, 0)] for runs in piece.runs])

    return read


@given(drawn=labelled_columns(), share=st.sampled_from([0.0, 0.3]), per_piece=st.integers(1, 40), around=st.booleans())
def test_order_statistics_are_those_of_sorted_values(drawn, share, per_piece, around):
    values, codes = with_missing(drawn[0], share), drawn[1]
    wanted, expected, centres = {}, {}, {}
    for column, of_column in enumerate(values):
        for k in range(codes.max() + 1):
            own = of_column[(codes == k) & ~np.isnan(of_column)]
            centres[k, column] = np.float32(0.7)
            if len(own):
                expected[k, column] = np.sort(np.abs(own - np.float32(0.7)) if around else own)
                wanted[k, column] = sorted({0, len(own) // 2, len(own) - 1})
    passes = OrderStatisticPasses(wanted, ROWS, centres if around else None)
    run_passes(in_pieces(values, codes, per_piece), passes)
    assert passes.is_done
    for place, positions in wanted.items():
        for position in positions:
            found, ordered = passes.found[place][position], expected[place]
            assert found.value == ordered[position]
            assert (found.below, found.upto) == ((ordered < found.value).sum(), (ordered <= found.value).sum())


@given(drawn=labelled_columns(), share=st.sampled_from([0.0, 0.3]), most_rows=st.integers(1, 9), per=st.integers(1, 40))
def test_distances_are_those_of_loops_however_few_bins_are_counted_at_a_time(drawn, share, most_rows, per):
    values, codes = with_missing(drawn[0], share), drawn[1]
    counts = np.array([[len(own) for own in by_class(column, codes)] for column in values]).T
    passes = DistancePasses(counts, ROWS, most_rows)
    run_passes(in_pieces(values, codes, per), passes)
    for column, of_column in enumerate(values):
        classes = by_class(of_column, codes)
        for k, own in enumerate(classes):
            rest = [value for j, other in enumerate(classes) if j != k for value in other]
            n_pairs = len(own) * len(rest)
            expected = oracles.distribution_distance(own, rest) if n_pairs else 0
            assert passes.found.largest[k, column] == pytest.approx(expected * n_pairs)


def test_bins_that_cannot_have_the_largest_distance_are_not_looked_at():
    values = np.random.default_rng(0).standard_normal((1, 4_000)).astype(np.float32)
    codes = np.arange(4_000) % 2
    values[0, codes == 1] += 1
    reads, read = [], in_pieces(values, codes, 1_000)
    passes = DistancePasses(np.array([[2_000], [2_000]]), ROWS, 64)
    run_passes(lambda: (reads.append(1), read())[1], passes)
    assert len(reads) <= 4


@given(st.lists(st.floats(width=64, allow_infinity=False), min_size=1, max_size=30), st.integers(1, 30))
def test_wide_medians_are_those_of_sorted_values(drawn, per_piece):
    values = np.array([drawn, drawn])
    present = np.sort(values[0][~np.isnan(values[0])])
    if not len(present):
        return
    passes = WideMedianPasses({1: len(present) // 2})
    run_passes(lambda: (values[:, at : at + per_piece] for at in range(0, len(drawn), per_piece)), passes)
    assert passes.value(1) == present[len(present) // 2]
