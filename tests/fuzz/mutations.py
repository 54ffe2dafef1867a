"""Mutations of valid files: of their bytes, and of the values that JSON in them holds."""

import json
import math
from itertools import islice

HUGE_DEPTH = 100_000
FOREIGN_NAMES = (
    "../outside",
    "../../outside",
    "/outside",
    "a/../../outside",
    "a\\..\\outside",
    "C:\\outside",
    "",
    ".",
    "..",
    "nul\0byte",
    "memory://outside",
    "s3://",
    "__class__",
)
NUMBERS = (
    *(0, 1, -1, 2, 7, 255, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 2**64, 10**12, 10**30),
    *(10**400, 0.5, -0.0, 1e-320, 1e308, 5e-324, math.nan, math.inf, -math.inf),
)
WORDS = (
    *("lone \ud800 surrogate", "two\nlines", "\u2028", "\x1b[31m", "x" * 300, "x" * 100_000, "1" * 5000, "🦊" * 40),
    *("nan", "inf", "1e999", "<U1000000000", "O", "|V0", "<M8[ns]", "float16", "bool", "string", "top", "joint"),
)
OTHER_VALUES = (None, True, False, [], {}, [[]], [None], {"": {}}, [0] * 1000)
WHOLE_FILES = (
    b"",
    b"{",
    b"null",
    b"[]",
    b"0",
    b'""',
    b"{}" * 3,
    b"\xff\xfe{\0}\0",
    b"\0" * 64,
    b"[" * HUGE_DEPTH,
    b'{"a":' * HUGE_DEPTH,
    b"[" * HUGE_DEPTH + b"]" * HUGE_DEPTH,
    b"9" * 5000,
    b"-Infinity",
    b'{"a": 1e999999}',
)
INTERESTING_BYTES = (0, 1, 0x7F, 0x80, 0xFE, 0xFF, 0x0A, 0x22, 0x7B, 0x5B)
MOST_MUTATIONS, MOST_PLACES = 4, 10_000


def mutated(rng, content):
    """Foreign content: a valid file with a few changes, of its JSON values if it is JSON, else of its bytes."""
    if rng.random() < 0.005:
        return rng.choice(WHOLE_FILES)
    if content[:1] == b"{" and rng.random() < 0.8:
        return mutated_json(rng, content)
    return mutated_bytes(rng, content)


def mutated_bytes(rng, content):
    """Flip, set, insert, remove, repeat and swap bytes, or write a number of 1 to 8 bytes."""
    changed = bytearray(content)
    for _ in range(rng.randint(1, MOST_MUTATIONS)):
        rng.choice(BYTE_MUTATIONS)(rng, changed)
    return bytes(changed)


def _flip(rng, changed):
    if changed:
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)


def _set(rng, changed):
    if changed:
        changed[rng.randrange(len(changed))] = rng.choice(INTERESTING_BYTES)


def _insert(rng, changed):
    at = rng.randint(0, len(changed))
    changed[at:at] = rng.choice((rng.randbytes(rng.randint(1, 8)), b"\0" * 16, b"\n", b"\xff" * 4, b"9" * 30))


def _remove(rng, changed):
    at = rng.randint(0, len(changed))
    del changed[at : at + rng.choice((1, 1, 2, 4, 8, 64))]


def _truncate(rng, changed):
    del changed[rng.randint(0, len(changed)) :]


def _repeat(rng, changed):
    at = rng.randint(0, len(changed))
    part = changed[at : at + rng.randint(1, 64)]
    changed[at:at] = part * rng.randint(1, 3)


def _copy(rng, changed):
    if changed:
        source, target = rng.randrange(len(changed)), rng.randrange(len(changed))
        part = changed[source : source + rng.randint(1, 16)]
        changed[target : target + len(part)] = part


def _number(rng, changed):
    if changed:
        length, at = rng.choice((1, 2, 4, 8)), rng.randrange(len(changed))
        value = rng.choice([number for number in NUMBERS if isinstance(number, int)]) % 256**length
        changed[at : at + length] = value.to_bytes(length, rng.choice(("little", "big")))


# Changes of one byte come more often, because a reader is more likely to go on after them.
BYTE_MUTATIONS = (_flip, _flip, _flip, _set, _set, _number, _number, _insert, _remove, _truncate, _repeat, _copy)


class _Pairs(dict):
    """An object of JSON that is written with some of its keys twice."""

    def items(self):
        """All entries, the first one once more at the end with another value."""
        entries = list(super().items())
        return [*entries, *((name, None) for name, _ in entries[:1])]


def mutated_json(rng, content):
    """Change some values of a JSON document: other types, huge numbers, foreign names, missing and double keys."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return mutated_bytes(rng, content)
    for _ in range(rng.randint(1, MOST_MUTATIONS)):
        document = _with_a_change(rng, document)
    try:
        return json.dumps(document, ensure_ascii=rng.random() < 0.9).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError, MemoryError):
        return mutated_bytes(rng, content)


def _with_a_change(rng, document):
    # Not all places of a long document, as the memory limit holds for this list, too.
    places = list(islice(_places(document), MOST_PLACES))
    if not places:
        return _other_value(rng, document)
    # Deep documents have many values at the bottom, so half of the changes are near the top.
    container, key = rng.choice(places[:40] if rng.random() < 0.5 else places)
    action = rng.random()
    if action < 0.7:
        container[key] = _other_value(rng, container[key])
    elif action < 0.85:
        del container[key]
    elif isinstance(container, list):
        is_small = not isinstance(container[key], (dict, list, str))
        container[key:key] = [container[key]] * rng.choice((1, 2, 1000 if is_small else 3))
    elif action < 0.9:
        container[rng.choice(FOREIGN_NAMES + WORDS)] = container[key]
    elif isinstance(container[key], dict):
        container[key] = _Pairs(container[key])
    else:
        other, other_key = rng.choice(places)
        container[key] = other[other_key] if other_key in _keys(other) else None
    return document


def _keys(container):
    return range(len(container)) if isinstance(container, list) else container


def _places(document):
    """All (container, key) of a document, those near the top first."""
    containers = [document] if isinstance(document, (dict, list)) else []
    for container in containers:
        for key in list(_keys(container)):
            yield container, key
            if isinstance(container[key], (dict, list)) and len(containers) < 200:
                containers.append(container[key])


def _other_value(rng, value):
    if isinstance(value, bool) or value is None or rng.random() < 0.3:
        return rng.choice((*OTHER_VALUES, *NUMBERS, *WORDS, *FOREIGN_NAMES))
    if isinstance(value, (int, float)):
        return rng.choice((*NUMBERS, value + 1, value - 1, -value, value * 2, [value], {"value": value}))
    if isinstance(value, str):
        return rng.choice((*WORDS, *FOREIGN_NAMES, value * 2, value[:-1], value.upper(), [value], value + "\n"))
    if isinstance(value, list):
        return rng.choice((value[:-1], value[1:], value[::-1], value * 2, [value], dict(enumerate(value)), value[:1]))
    return rng.choice((list(value), list(value.values()), _nested(value, rng.choice((3, 200))), {}, _Pairs(value)))


def _nested(value, depth):
    for _ in range(depth):
        value = {"a": value}
    return value
