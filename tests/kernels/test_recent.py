"""Values that are found again by their keys, and when they are freed."""

import weakref

from fxdask.kernels.recent import RecentValues


class Value:
    def __init__(self, n_bytes):
        self.n_bytes = n_bytes


def recent(most_bytes):
    return RecentValues(lambda value: value.n_bytes, most_bytes)


def test_the_oldest_values_are_freed_first():
    values = recent(10)
    made = {key: weakref.ref(values.get(key, lambda: Value(4))) for key in "abc"}
    assert [key for key, value in made.items() if value() is not None] == ["b", "c"]
    values.get("b", lambda: Value(0))  # now c is the oldest
    values.get("d", lambda: Value(4))
    assert made["b"]().n_bytes == 4
    assert made["c"]() is None


def test_the_most_recent_value_is_kept_whatever_its_size():
    values = recent(10)
    first, second = (weakref.ref(values.get(key, lambda: Value(100))) for key in "ab")
    assert first() is None
    assert second() is not None


def test_a_value_in_use_is_found_although_it_is_not_kept():
    values = recent(10)
    used = values.get("a", lambda: Value(100))
    values.get("b", lambda: Value(100))
    values.clear()
    assert values.get("a", lambda: Value(1)) is used


def test_values_that_grew_are_freed():
    values = recent(10)
    grown = weakref.ref(values.get("a", lambda: Value(1)))
    grown().n_bytes = 11
    values.get("b", lambda: Value(1))
    assert grown() is None


def test_cleared_values_are_freed():
    values = recent(10)
    value = weakref.ref(values.get("a", lambda: Value(1)))
    values.clear()
    assert value() is None
