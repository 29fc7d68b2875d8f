"""pariskv.Cache: what it computes, what it refuses, what it takes."""

import os
import signal
import threading

import numpy as np
import pytest

H, HQ, D = 2, 8, 32
SHAPE = dict(sink=16, local=32, interval=32, dense_below=64, page_tokens=64, dtype="float32")
ALL = dict(k=4096, candidates=1.0)


def numbers(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def tokens(n, seed=0):
    """Queries, keys and values [n, heads, d]."""
    return numbers(seed, n, HQ, D), numbers(seed + 1, n, H, D), numbers(seed + 2, n, H, D)


def full_attention(query, keys, values):
    """Of query [hq, d] over keys, values [n, h, d], in double."""
    out = np.empty((HQ, D))
    for head in range(HQ):
        k, v = keys[:, head * H // HQ], values[:, head * H // HQ]
        logits = k.astype(float) @ query[head] / np.sqrt(D)
        weights = np.exp(logits - logits.max())
        out[head] = weights @ v / weights.sum()
    return out


@pytest.fixture
def cache(pariskv):
    made = pariskv.Cache(1, H, HQ, D, sequences=4, **SHAPE, **ALL)
    made.add()
    return made


def test_a_step_attends_to_everything(cache):
    q, k, v = tokens(500)
    cache.append(0, k[:499], v[:499], q[:499])
    lse = np.empty((1, HQ), np.float32)
    out = cache.step(0, q[499:], k[499:], v[499:], lse=lse)
    regions = cache.regions()
    assert regions.is_encoded and regions.zone == 448 and regions.tokens == 500
    assert np.abs(out[0] - full_attention(q[499], k, v)).max() < 1e-4
    logits = np.einsum("nd,d->n", k[:, 0].astype(float), q[499, 0]) / np.sqrt(D)
    assert abs(lse[0, 0] - np.log(np.exp(logits).sum())) < 1e-4


def test_few_rows_differ_from_all_of_them(pariskv, cache):
    """Or the test above could not fail."""
    sparse = pariskv.Cache(1, H, HQ, D, **SHAPE, k=4, candidates=0.02, tail="drop")
    sparse.add()
    q, k, v = tokens(500)
    sparse.append(0, k, v, q)
    exact = full_attention(q[499], k, v)
    assert np.abs(sparse.attend(0, q[499:])[0] - exact).max() > 1e-2
    assert np.abs(sparse.attend(0, q[499:], exact=True)[0] - exact).max() < 1e-4


def test_batches_of_several_sequences(cache):
    q, k, v = tokens(300)
    second = cache.add()
    both = {"sequences": [second, 0], "counts": [100, 200]}
    out = cache.step(0, q, k, v, exact=True, **both)
    assert cache.length(0) == 200 and cache.length(second) == 100
    assert np.abs(out[99] - full_attention(q[99], k[:100], v[:100])).max() < 1e-4
    assert np.abs(out[299] - full_attention(q[299], k[100:], v[100:])).max() < 1e-4


def test_fork_and_truncate(cache):
    q, k, v = tokens(300)
    cache.append(0, k, v, q)
    twin = cache.fork(0, 250)
    cache.truncate(0, 250)
    step = {"sequences": [0, twin], "counts": [1, 1]}
    rows = [np.concatenate([a[:1], a[:1]]) for a in (q, k, v)]
    out = cache.step(0, *rows, **step)
    assert np.array_equal(out[0], out[1])
    cache.remove(twin)
    assert cache.stats().sequences == 1 and cache.stats().tokens == 251


def test_rows_come_back_as_they_went(cache):
    q, k, v = tokens(300)
    cache.append(0, k, v, q)
    keys, values = cache.rows(0, 0, 10, 250)
    assert np.array_equal(keys.transpose(1, 0, 2), k[10:260])
    assert np.array_equal(values.transpose(1, 0, 2), v[10:260])
    hits = cache.retrieve(0, q[:1])
    rows, _ = cache.fetch(0, hits)
    assert hits.counts[0, 0] == 224
    assert np.array_equal(rows[0, 1, :224], k[16 + hits.positions[0, 1, :224], 1])


def test_files(pariskv, cache, tmp_path):
    q, k, v = tokens(200)
    cache.append(0, k, v, q)
    cache.save(tmp_path / "a.pkv")
    with pytest.raises(FileExistsError, match="a.pkv"):
        cache.save(tmp_path / "a.pkv")
    other = pariskv.Cache(1, H, HQ, D, sequences=4, **SHAPE, **ALL)
    assert other.load(tmp_path / "a.pkv") == [0]
    assert np.array_equal(other.attend(0, q[-1:]), cache.attend(0, q[-1:]))
    with pytest.raises(pariskv.NotFoundError):
        other.load(tmp_path / "b.pkv")


def test_launches_are_announced_where_steps_are_captured(pariskv, cache):
    with pytest.raises(pariskv.FailedPreconditionError, match="cpu"):
        cache.advance()
    with pytest.raises(ValueError, match="2 counts for 1 sequences"):
        cache.advance(counts=[1, 1])


def test_windows_and_dense_layers(pariskv):
    made = pariskv.Cache(3, H, HQ, D, policies=["dense", "sparse", 40], **SHAPE, k=1, candidates=1)
    made.add()
    q, k, v = tokens(300)
    for layer in range(3):
        made.append(layer, k, v, q)
    assert [made.regions(0, layer).zone for layer in range(3)] == [0, 224, 0]
    assert np.abs(made.attend(0, q[-1:])[0] - full_attention(q[-1], k, v)).max() < 1e-4
    near = full_attention(q[-1], k[-40:], v[-40:])
    assert np.abs(made.attend(2, q[-1:])[0] - near).max() < 1e-4


def test_pages_of_the_caller(pariskv, cache):
    q, k, v = tokens(200)
    pools = [np.zeros((32, 8, H, D), np.float32) for _ in range(2)]
    pages = np.random.default_rng(0).permutation(32)[:25]
    for pool, rows in zip(pools, (k, v)):
        pool[pages] = rows.reshape(25, 8, H, D)
    made = pariskv.Cache(1, H, HQ, D, **SHAPE, **ALL)
    made.add()
    made.bind_pool(0, *pools, layout="nhd")
    made.append_pages(0, [0], [0, 25], pages, [8], queries=q)
    cache.append(0, k, v, q)
    assert np.array_equal(made.attend(0, q[-1:]), cache.attend(0, q[-1:]))
    with pytest.raises(IndexError, match="32"):
        made.append_pages(0, [0], [0, 26], [*pages, 32], [1])


def test_sizes_are_told_before_and_after(pariskv, cache):
    q, k, v = tokens(300)
    cache.append(0, k, v, q)
    shape = {**SHAPE, **ALL, "sequences": 4}
    told = pariskv.cache_bytes([300], 1, H, HQ, D, query_dtype="float32", **shape)
    assert told.row_pages == cache.usage().row_pages > 300 * H * D * 8
    assert told.record_pages == cache.usage().record_pages > 0
    described = cache.describe()
    assert isinstance(described, dict) and described


def test_heads_that_have_been_repeated_are_refused(cache):
    """Keys of as many heads as the queries: not the first two of them in silence."""
    q, k, v = tokens(20)
    repeated = k.repeat(HQ // H, axis=1)
    with pytest.raises(ValueError, match=r"keys has 8 heads .* cache 2"):
        cache.append(0, repeated, v, q)
    with pytest.raises(ValueError, match=r"values has 8 heads"):
        cache.append(0, k, repeated, q)
    assert cache.length() == 0


def test_settings_are_reported_and_misspelt_ones_refused(pariskv):
    given = dict(sink=8, local=32, interval=64, k=77)
    made = pariskv.Cache(1, H, HQ, D, device="cpu_ref", page_tokens=64, dense_below=64, **given)
    text = str(made.describe())
    for name, value in given.items():
        assert f"'{name}': {value}" in text or f"'{name}': '{value}'" in text, (name, text)
    assert made.device.backend == "cpu_ref"
    with pytest.raises(LookupError, match="kandidates"):
        pariskv.Cache(1, H, HQ, D, kandidates=1)
    with pytest.raises(ValueError, match="interval"):
        pariskv.Cache(1, H, HQ, D, interval=0)


def test_errors_carry_the_librarys_text(pariskv, cache):
    q, k, v = tokens(10)
    with pytest.raises(pariskv.OutOfRangeError, match="layer=1") as caught:
        cache.append(1, k, v)
    assert caught.value.status == 11 and caught.value.name == "OUT_OF_RANGE"
    k[3, 1, 0] = np.nan
    with pytest.raises(ValueError, match="position 3"):
        cache.append(0, k, v)
    with pytest.raises(TypeError, match=r"keys is of dtype float16; choose from float32"):
        cache.append(0, k.astype(np.float16), v)
    with pytest.raises(TypeError, match="keys is a list"):
        cache.append(0, [[[1.0]]], v)
    with pytest.raises(ValueError, match="2 axes"):
        cache.append(0, k[0], v)
    with pytest.raises(ValueError, match="1 counts for 2 sequences"):
        cache.append(0, k, v, sequences=[0, 1], counts=[10])
    with pytest.raises(ValueError, match="read-only"):
        out = np.zeros((1, HQ, D), np.float32)
        out.flags.writeable = False
        cache.attend(0, q[:1], out=out)
    with pytest.raises(pariskv.FailedPreconditionError):
        cache.length(3)


@pytest.mark.parametrize("change", ["padded", "column_major", "negative", "repeated"])
def test_strides_are_honoured_or_refused(pariskv, cache, change):
    q, k, v = tokens(64)
    if change == "padded":
        strange = np.zeros((64, H, D + 8), np.float32)[:, :, :D]
    elif change == "column_major":
        strange = np.zeros((D, H, 64), np.float32).T
    elif change == "negative":
        strange = np.zeros_like(k)[::-1]
    else:
        k[:, 1] = k[:, 0]
        strange = np.broadcast_to(k[:, :1], k.shape)
    if change == "column_major":
        strange[:] = k
        with pytest.raises(ValueError, match="stride"):
            cache.append(0, strange, v)
        return
    if change != "repeated":
        strange[:] = k
    cache.append(0, strange, v, q)
    assert np.array_equal(cache.rows(0, 0, 0, 64)[0].transpose(1, 0, 2), k)


class ByDlpack:
    def __init__(self, array):
        self.held = array

    def __dlpack__(self, **options):
        return self.held.__dlpack__(**options)


class ByInterface:
    def __init__(self, array):
        self.held, self.__array_interface__ = array, array.__array_interface__


@pytest.mark.parametrize("wrap", [ByDlpack, ByInterface])
def test_foreign_arrays_are_borrowed(cache, wrap):
    q, k, v = tokens(100)
    cache.append(0, wrap(k), wrap(v), wrap(q))
    out = np.zeros((1, HQ, D), np.float32)
    given = wrap(out)
    assert cache.attend(0, wrap(q[99:]), out=given) is given
    assert np.array_equal(out, cache.attend(0, q[99:]))


def test_calls_of_several_threads_give_what_one_gives(cache):
    """Each call releases the interpreter lock, and the cache lets one in at a time."""
    q, k, v = tokens(400)
    cache.append(0, k, v, q)
    wanted = [cache.attend(0, q[i : i + 1]) for i in range(8)]
    wrong = []

    def work(number):
        for turn in range(50):
            row = (number + turn) % 8
            if not np.array_equal(cache.attend(0, q[row : row + 1]), wanted[row]):
                wrong.append((number, turn))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_objects_may_go_in_any_order(pariskv):
    device = pariskv.Device("cpu")
    made = pariskv.Cache(1, H, HQ, D, device=device, **SHAPE)
    device.close()
    made.add()
    made.close()
    made.close()


def in_child(body):
    """Exit code of a child that does this, and ends within a minute."""
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        code = 1
        try:
            code = 0 if body() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_the_child_of_a_fork_makes_objects_of_its_own(pariskv, cache):
    q, k, v = tokens(300)

    def answer():
        own = pariskv.Cache(1, H, HQ, D, **SHAPE, **ALL)
        own.add()
        own.append(0, k, v, q)
        return own.attend(0, q[299:])[0]

    expected = answer()
    cache.append(0, k, v, q)

    def is_refused():
        with pytest.raises(pariskv.FailedPreconditionError, match="forked"):
            cache.attend(0, q[299:])
        return True

    assert in_child(is_refused) == 0
    assert in_child(lambda: np.array_equal(answer(), expected)) == 0
    assert np.array_equal(cache.attend(0, q[299:])[0], expected)
