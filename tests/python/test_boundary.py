"""The Python boundary under arrays, options and files that nobody meant: what is refused is refused
by an exception with a text and changes nothing, what is taken is taken as numpy would read it."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

H, D = 2, 16
REFUSALS = (ValueError, TypeError, LookupError, OSError, IndexError, MemoryError, RuntimeError)
LIGHT = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def numbers(*shape):
    return (np.arange(np.prod(shape)) * 37 % 251 / 64 - 2).astype(np.float32).reshape(shape)


@pytest.fixture(scope="module")
def codec(pariskv):
    return pariskv.Codec.fit(numbers(H, 64, D), numbers(2 * H, 4, D), numbers(H, 64, D))


extents = st.one_of(st.integers(0, 5), st.sampled_from([H, D, 2 * H, 64]))
dtypes = st.sampled_from(["f4", "f2", "f8", "i4", "i8", "u1", "c8", "?", "O", "U3", ">f4", "M8[s]"])


@st.composite
def arrays(draw):
    """Of any shape, dtype and layout, most of them near what is wanted."""
    shape = draw(
        st.one_of(
            st.tuples(st.just(H), extents, st.just(D)),
            st.lists(extents, max_size=5).map(tuple),
        )
    )
    dtype = draw(st.one_of(st.just("f4"), dtypes))
    if dtype == "O":
        return np.full(shape, None, object)
    array = numbers(*shape).astype(dtype) if shape else np.zeros((), dtype)
    for step in draw(
        st.lists(st.sampled_from(["back", "swap", "skip", "grow", "lock"]), max_size=2)
    ):
        if step == "back" and array.ndim:
            array = array[..., ::-1]
        elif step == "swap" and array.ndim > 1:
            array = array.swapaxes(0, -1)
        elif step == "skip" and array.ndim:
            array = array[::2]
        elif step == "grow":
            array = np.broadcast_to(array, (1, *array.shape))
        elif step == "lock":
            array = array.copy()
            array.flags.writeable = False
    return array


def refusal(call, *args, **options):
    """What the call raised, or None. Nothing but exceptions with a text comes over the boundary."""
    try:
        call(*args, **options)
    except REFUSALS as error:
        assert str(error)
        return error
    return None


@LIGHT
@given(keys=arrays(), values=arrays(), sequence=st.integers(-(2**70), 2**70) | st.integers(0, 1))
def test_appends(pariskv, codec, keys, values, sequence):
    index = pariskv.Index(codec, 40)
    index.append(numbers(H, 3, D), numbers(H, 3, D))
    refused = refusal(index.append, keys, values, sequence=sequence)
    assert index.length() == (3 if refused or sequence else 3 + keys.shape[1])


@LIGHT
@given(query=arrays(), k=st.integers(-3, 70) | st.integers(), candidates=st.floats() | st.text())
def test_retrieves(pariskv, codec, query, k, candidates):
    index = pariskv.Index(codec, 40)
    index.append(numbers(H, 30, D), numbers(H, 30, D))
    try:
        hits = pariskv.retrieve(index, query, k=k, candidates=candidates)
    except REFUSALS as error:
        assert str(error)
        return
    assert hits.positions.min(initial=0) >= -1 and hits.positions.max(initial=0) < 30


@LIGHT
@given(
    options=st.dictionaries(
        st.text(max_size=12) | st.sampled_from(["k", "tail", "vote", "fit", "head_dim"]),
        st.text(max_size=12) | st.integers() | st.sampled_from(["mean", "graded", True, None]),
        max_size=3,
    )
)
def test_options(pariskv, options):
    refused = refusal(pariskv.Codec.fit, numbers(H, 20, D), **options)
    assert refused or not options or all(name.isidentifier() for name in options)


@LIGHT
@given(
    damage=st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), max_size=4),
    cut=st.integers(0, 4000),
)
def test_files(pariskv, codec, tmp_path, damage, cut):
    index = pariskv.Index(codec, 40)
    index.append(numbers(H, 20, D), numbers(H, 20, D))
    path = tmp_path / "index.pkv"
    index.save(path, overwrite=True)
    data = bytearray(path.read_bytes())
    for at, byte in damage:
        data[at % len(data)] = byte
    path.write_bytes(data[: cut or len(data)])
    refusal(pariskv.Index.load, path)
