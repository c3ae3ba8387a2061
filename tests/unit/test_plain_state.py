"""States of the trainer as plain data: round trips, errors for unsupported values, and hostile input."""

from __future__ import annotations

import collections
import datetime
import math
import pathlib
import random
import struct
import subprocess
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.trainer.decode import Malformed, decode
from outlast.trainer.encode import MAGIC, MAX_DEPTH, UnsavableState, encode
from outlast.trainer.rng import rng_state, set_rng_state


def stored(value: Any) -> tuple[bytes, list[bytes]]:
    body, buffers = encode(value)
    return bytes(body), [bytes(buffer.view().cast("B")) for buffer in buffers]


def loaded(body: bytes, buffers: list[bytes]) -> Any:
    return decode(body, [memoryview(bytearray(one)) for one in buffers])


def back(value: Any) -> Any:
    return loaded(*stored(value))


def same(one: Any, other: Any) -> bool:
    """Equal in value and in type at each level; NaN equals itself."""
    if type(one) is not type(other):
        return False
    if isinstance(one, numpy.ndarray | numpy.generic):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, list | tuple | collections.deque):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return same(list(one), list(other)) and same(list(one.values()), list(other.values()))
    if isinstance(one, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    return bool(one == other)


keys = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=9)
    | st.binary(max_size=9),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)
dtypes = st.sampled_from(["<f8", ">i2", "|b1", "<c8", "<M8[ns]", "|S3", "<U2", [("a", "<i4"), ("b", "<f8", (2,))]])
arrays = st.builds(
    lambda dtype, shape, order: numpy.full(shape, 1, dtype=dtype, order=order),
    dtypes,
    st.lists(st.integers(0, 9), max_size=3),
    st.sampled_from("CF"),
)
leaves = (
    keys
    | st.floats()
    | st.complex_numbers(allow_nan=False)
    | st.integers(-(1 << 200), 1 << 200)
    | st.text(st.characters(codec=None))
    | st.binary(max_size=9000)
    | st.binary(max_size=9000).map(bytearray)
    | st.datetimes()
    | st.datetimes(timezones=st.just(datetime.UTC))
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.lists(st.floats(), min_size=8, max_size=30)
    | st.lists(st.integers(), min_size=8, max_size=30).map(tuple)
    | arrays
    | st.floats(width=32).map(numpy.float32)
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=4).map(collections.OrderedDict)
        | st.dictionaries(keys, inner, max_size=4).map(lambda items: collections.defaultdict(list, items))
        | st.lists(inner, max_size=4).map(lambda items: collections.deque(items, 9))
        | st.sets(keys, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(value=values)
def test_any_plain_state_comes_back_equal_in_value_and_type(value: Any) -> None:
    assert same(back(value), value)


@pytest.mark.full
@settings(max_examples=600, deadline=None)
@given(value=values, data=st.data())
def test_mutated_streams_are_refused_or_decoded_and_nothing_else(value: Any, data: st.DataObject) -> None:
    body, buffers = stored(value)
    mutable = bytearray(body)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(0, len(mutable) - 1)))
        match data.draw(st.sampled_from(["set", "cut", "insert", "repeat"])):
            case "set" if mutable:
                mutable[at] = data.draw(st.integers(0, 255))
            case "cut":
                del mutable[at : at + data.draw(st.integers(1, 9))]
            case "insert":
                mutable[at:at] = data.draw(st.binary(max_size=9))
            case _:
                mutable[at:at] = mutable[at : at + 20]
    if buffers and data.draw(st.booleans()):
        buffers = data.draw(st.sampled_from([[], buffers[:-1], [*buffers, b"x" * 4096], [b""] * len(buffers)]))
    try:
        loaded(bytes(mutable), buffers)
    except Malformed:
        pass


@settings(max_examples=400, deadline=None)
@given(body=st.lists(st.sampled_from(b"NTFiIfcsSbBltdeEpPqQrx<>=\x00\x01\x02\x7f\x80\xff"), max_size=60).map(bytes))
def test_streams_of_random_tags_are_refused_or_decoded(body: bytes) -> None:
    try:
        loaded(MAGIC + body, [])
    except Malformed:
        pass


def named(name: str, *fields: bytes) -> bytes:
    """A library value as a hostile writer spells it."""
    return b"xs" + bytes([len(name)]) + name.encode() + bytes([len(fields)]) + b"".join(fields)


def text(value: str) -> bytes:
    return b"s" + bytes([len(value)]) + value.encode()


def number(value: int) -> bytes:
    return b"i" + struct.pack("<q", value)


HUGE = b"\xff" * 7 + b"\x7f"


def with_position(name: str, field: str, value: int) -> bytes:
    """A generator whose position is outside of its block: NumPy takes it, and would draw from foreign memory."""
    generator = numpy.random.Generator(getattr(numpy.random, name)(1))
    plain = generator.bit_generator.state
    (plain["state"] if field == "pos" else plain)[field] = value
    generator.bit_generator.state = plain
    return bytes(encode(generator)[0][len(MAGIC) :])


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "invalid value"),
        (b"Z", "unknown tag"),
        (b"NN", "bytes follow its end"),
        (b"l\x01" * 100_000, "levels deep"),
        (b"l" + HUGE, "fewer follow"),
        (b"p" + HUGE, "fewer follow"),
        (b"d" + HUGE, "fewer follow"),
        (b"s" + HUGE, "fewer follow"),
        (b"I" + HUGE, "fewer follow"),
        (b"b<" + HUGE, "fewer follow"),
        (b"b>" + HUGE, "missing"),
        (b"l\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "too large"),
        (b"r\x00", "invalid value"),
        (b"S\x00", "invalid value"),
        (b"d\x01l\x00N", "unhashable"),
        (b"d\x02NTNF", "keys that are equal"),
        (b"l\x02t\x00d\x01r\x00N", "refers to another"),
        (named("os.system", text("id")), "unknown kind"),
        (named("builtins.eval", text("1")), "unknown kind"),
        (named("numpy.ndarray", text("|O8"), b"t\x01" + number(1), text("C"), b"<\x08" + b"x" * 8), "not a dtype"),
        (named("numpy.ndarray", text("<f8"), b"t\x01" + number(2), text("C"), b"<\x08" + b"x" * 8), "does not fit"),
        (named("numpy.ndarray", text("<f8"), b"t\x01" + number(-1), text("C"), b"<\x00"), "not a shape"),
        (named("numpy.ndarray", text("<f8"), b"t\x01" + number(1 << 61), text("C"), b"<\x00"), "does not fit"),
        (named("numpy.ndarray", text("f8,O"), b"t\x00", text("C"), b"<\x00"), "not a dtype"),
        (named("numpy.ndarray", text("<f8")), "positional"),
        (named("numpy.generic", text("<f8"), b"N"), "does not fit"),
        (b"l\x02b<\x01xb=\x00", "no blob"),
        (b"l\x02l\x01N" + named("collections.deque", b"r\x00", b"N"), "made of another"),
        (named("collections.deque", text("ab"), b"N"), "not a list"),
        (named("collections.OrderedDict", b"l\x00", b"N"), "not a dict"),
        (named("collections.defaultdict", b"d\x00", text("exec")), "exec"),
        (named("random.Random", b"t\x03" + number(2) + b"l\x01" + text("%999999999d") + b"N"), "not a state"),
        (named("datetime.date", text("yesterday")), "isoformat"),
        (named("torch.dtype", text("load")), "not a dtype"),
        (with_position("MT19937", "pos", 100_000), "not in 0 to 624"),
        (with_position("Philox", "buffer_pos", -100_000), "not in 0 to 4"),
    ],
    ids=range(36),
)
def test_hostile_streams_are_refused(body: bytes, why: str) -> None:
    with pytest.raises(Malformed) as refused:
        loaded(MAGIC + body, [])
    assert why in str(refused.value)


def test_a_pickle_is_refused() -> None:
    with pytest.raises(Malformed, match="does not start"):
        loaded(b"cos\nsystem\n(S'true'\ntR.", [])


def test_a_buffer_is_used_once_and_all_of_them_are() -> None:
    body, buffers = stored([b"x" * 5000, numpy.zeros(1000)])
    assert len(buffers) == 2
    for wrong in (buffers[:1], buffers[::-1], [*buffers, b""], [buffers[0], buffers[1][:-1]]):
        with pytest.raises(Malformed):
            loaded(body, wrong)


def test_a_small_stream_cannot_take_much_memory() -> None:
    """Each of these is below 100 kB and would take gigabytes if a count, a shape or a reference were believed."""
    script = """
import resource, sys
from outlast.trainer.decode import Malformed, decode
from outlast.trainer.encode import MAGIC
import numpy
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
HUGE = b"\\xff" * 7 + b"\\x7f"
name = b"xs\\x11collections.deque\\x02"
deque = name.replace(b"\\x11", bytes([len("collections.deque")]))
for body in (b"l" + HUGE, b"p" + HUGE, b"b>" + HUGE,
             b"l\\x02" + b"l\\x80\\x80\\x02" + b"N" * 32768 + b"l\\x88\\x27" + (deque + b"r\\x00N") * 5000,
             b"l\\x02b<\\x80\\x80\\x02" + b"x" * 32768 + b"l\\x88\\x27" + b"b=\\x00" * 5000):
    try:
        decode(MAGIC + body, [])
    except Malformed as problem:
        print("refused", problem)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.count("refused") == 5
    assert "MemoryError" not in done.stdout


class Point(NamedTuple):
    x: int


@dataclass
class Config:
    lr: float = 0.1


class Scheduler:
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def ladder(levels: int) -> list[Any]:
    top: list[Any] = []
    for _ in range(levels):
        top = [top]
    return top


def circle() -> list[Any]:
    top: list[Any] = []
    top.append({"again": top})
    return top


@pytest.mark.parametrize(
    ("value", "message", "hint"),
    [
        ({"s": {"f": [1, max]}}, 'state["s"]["f"][1] cannot be saved without pickle: builtin_', "save the numbers"),
        ({"scheduler": Scheduler()}, 'state["scheduler"] cannot', 'save state["scheduler"].state_dict() and restore'),
        ({"config": Config()}, 'state["config"] cannot', 'save dataclasses.asdict(state["config"])'),
        ((Point(1),), "state[0] cannot", "save state[0]._asdict()"),
        ({3: numpy.array([None])}, "state[3] cannot be saved without pickle: numpy.ndarray: it holds Python", "tolist"),
        ([numpy.ma.ones(2)], "state[0] cannot", "state[0].data and state[0].mask"),
        (
            collections.defaultdict(lambda: 0),
            "state cannot be saved without pickle: collections.default",
            "dict(state)",
        ),
        ({"a": {Point(1)}}, 'state["a"]{…} cannot', "pickle=True"),
        ({"deep": ladder(MAX_DEPTH + 1)}, "levels deep", "pickle=True"),
        (
            {"round": circle()},
            'state["round"][0]["again"] cannot be saved without pickle: list: it contains itself',
            "",
        ),
    ],
)
def test_an_unsupported_value_is_named_with_its_path_and_a_hint(value: Any, message: str, hint: str) -> None:
    with pytest.raises(UnsavableState) as refused:
        encode(value)
    assert message in refused.value.message
    assert hint in refused.value.hint
    assert "pass pickle=True to outlast.training()" in refused.value.hint


def test_a_value_that_occurs_twice_is_one_object_after_a_restore() -> None:
    inner, array = [1], numpy.zeros(2000)
    value = back({"a": inner, "b": (inner, array), "c": array})
    assert value["a"] is value["b"][0]
    assert value["c"] is value["b"][1]
    shared: Any = ()
    for _ in range(60):
        shared = (shared, shared)
    assert len(encode(shared)[0]) < 1000


def test_large_arrays_are_neither_copied_by_a_save_nor_by_a_restore() -> None:
    array = numpy.arange(100_000.0)
    body, buffers = encode({"a": array, "b": b"x" * 5000})
    assert len(body) < 200
    assert numpy.shares_memory(numpy.frombuffer(buffers[0].view(), numpy.uint8), array)
    arena = bytearray(buffers[0].view())
    restored = decode(bytes(body), [memoryview(arena), buffers[1].view()])["a"]
    assert numpy.shares_memory(restored, numpy.frombuffer(arena, numpy.uint8))
    restored[0] = 7
    assert restored.flags.writeable


@pytest.mark.parametrize("name", ["MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"])
def test_numpy_generators_are_restored(name: str) -> None:
    for make in (numpy.random.Generator, numpy.random.RandomState):
        generator = make(getattr(numpy.random, name)(3))
        generator.normal(size=3)
        assert list(back(generator).normal(size=5)) == list(generator.normal(size=5))


def test_python_generators_are_restored() -> None:
    generator = random.Random(3)
    generator.gauss(0, 1)
    assert back(generator).gauss(0, 1) == generator.gauss(0, 1)
    before = back(rng_state())
    drawn = random.random(), numpy.random.random()
    set_rng_state(before)
    assert (random.random(), numpy.random.random()) == drawn


@pytest.mark.parametrize("damage", ["python", "numpy"])
def test_states_of_generators_that_would_read_foreign_memory_are_refused(damage: str) -> None:
    state = rng_state()
    if damage == "python":
        state["python"] = (2, ["%999999999d"], None)
    else:
        state["numpy"] = (*state["numpy"][:2], 1 << 30, 0, 0.0)
    with pytest.raises(ValueError, match="generator"):
        set_rng_state(state)


@pytest.mark.parametrize(
    "value",
    [
        pathlib.Path("/a/b"),
        collections.Counter("hello"),
        numpy.arange(6).reshape(2, 3).T,
        numpy.arange(10)[::3],
        numpy.str_(""),
        numpy.datetime64("2020-02-02"),
        numpy.zeros(2, dtype=numpy.dtype([("a", "i1"), ("b", "f8")], align=True)),
        numpy.zeros(2, dtype=[("a", "<i4")])[0],
        numpy.dtype("<f4"),
        numpy.zeros((0, 5)),
        [float("nan"), -0.0, float("-inf")] * 4,
        [1 << 63] * 10,
        "\ud800",
    ],
    ids=repr,
)
def test_values_of_libraries_come_back(value: Any) -> None:
    assert same(back(value), value)
    assert repr(back(value)) == repr(value)
