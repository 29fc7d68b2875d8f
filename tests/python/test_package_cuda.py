"""The package on a CUDA device: tensors there in and out, the caller's stream, graphs."""

import pytest
from gpu import cuda, torch  # noqa: F401

pytestmark = pytest.mark.gpu

H, HQ, D = 2, 8, 64
SHAPE = dict(sink=16, local=32, interval=32, dense_below=64, page_tokens=64)
FEW = dict(k=32, candidates=0.2)


def tokens(n, dtype=torch.float32, seed=0):
    """Queries, keys and values [n, heads, d] on the CPU."""
    made = torch.Generator().manual_seed(seed)
    return [torch.randn(n, heads, D, generator=made).to(dtype) for heads in (HQ, H, H)]


def on_device(tensors):
    return [tensor.cuda() for tensor in tensors]


def cache_of(package, device, dtype=torch.float32, **options):
    made = package.Cache(1, H, HQ, D, dtype=dtype, device=device, sequences=4,
                         **{**SHAPE, **FEW, **options})  # fmt: skip
    made.add()
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", ["host", "device"])
def test_a_step_is_that_of_the_cpu(cuda, dtype, rows):  # noqa: F811
    q, k, v = tokens(600, dtype)
    outputs, sums, hits = [], [], []
    for device in ("cpu", "cuda"):
        cache = cache_of(cuda, device, dtype, rows_memory=rows)
        parts = on_device((q, k, v)) if device == "cuda" else (q, k, v)
        cache.append(0, *(part[:560] for part in (parts[1], parts[2], parts[0])))
        for token in range(560, 600):
            lse = torch.empty(1, HQ, device=parts[0].device)
            out = cache.step(0, *(part[token : token + 1] for part in parts), lse=lse)
            assert out.device == parts[0].device and out.dtype == dtype
        found = cache.retrieve(0, parts[0][-1:])
        hits.append(found.positions.cpu())
        outputs.append(out.float().cpu())
        sums.append(lse.cpu())
    assert cache.regions().is_encoded and cache.regions().zone == 544
    step = {torch.float32: 1e-4, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    assert (outputs[0] - outputs[1]).abs().max() < step
    assert (sums[0] - sums[1]).abs().max() < 1e-3
    assert torch.equal(hits[0].sort(-1).values, hits[1].sort(-1).values)
    rows, _ = cache.rows(0, 0, 100, 300, like=torch.empty(0))
    assert torch.equal(rows.transpose(0, 1), k[100:400])


def test_the_callers_stream(cuda):  # noqa: F811
    """Behind a long kernel and the one that writes K and V, without a wait between."""
    wanted = on_device(tokens(300))
    reference = cache_of(cuda, "cuda")
    reference.append(0, wanted[1][:-1], wanted[2][:-1], wanted[0][:-1])
    expected = reference.step(0, *(part[-1:] for part in wanted))
    q, k, v = (torch.zeros_like(part) for part in wanted)
    cache = cache_of(cuda, "cuda")
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        for part, source in zip((q, k, v), wanted):
            part.copy_(source)
        cache.append(0, k[:-1], v[:-1], q[:-1])
        out = cache.step(0, q[-1:], k[-1:], v[-1:])
        copy = out.clone()
        for part in (q, k, v):  # what has been appended is the cache's own
            part.zero_()
    stream.synchronize()
    assert torch.equal(copy, expected)
    rows, _ = cache.rows(0, 0, 0, 300, like=torch.empty(0))
    assert torch.equal(rows.transpose(0, 1), wanted[1].cpu())


def test_a_captured_step_is_launched_for_every_token(cuda):  # noqa: F811
    q, k, v = on_device(tokens(600))
    options = dict(deferred=1, fit_positions=0)  # captured steps keep no queries for fits
    plain, cache = (cache_of(cuda, "cuda", **options) for _ in range(2))
    cache.reserve(1000, 1000, 1)
    for one in (plain, cache):
        one.append(0, k[:400], v[:400], q[:400])
        one.flush()
        one.step(0, q[400:401], k[400:401], v[400:401])
    places = [torch.empty_like(part[:1]) for part in (q, k, v)]
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        out = cache.step(0, *places)
    assert cache.length() == 401
    for token in range(401, 600):
        for place, part in zip(places, (q, k, v)):
            place.copy_(part[token : token + 1])
        cache.advance()
        graph.replay()
        wanted = plain.step(0, *(part[token : token + 1] for part in (q, k, v)))
        assert (out - wanted).abs().max() < 1e-4, token
        if token % 32 == 0:
            plain.flush()
            cache.flush()
    assert cache.length() == 600 and cache.regions().zone == plain.regions().zone > 400
    cache.truncate(0, 300)
    assert (cache.attend(0, q[:1]) - plain_at(plain, 300, q[:1])).abs().max() < 1e-4


def plain_at(cache, length, query):
    cache.truncate(0, length)
    return cache.attend(0, query)


class Producer:
    """Speaks DLPack and nothing else."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, stream=None):
        self.stream = stream
        return self.tensor.__dlpack__(stream=stream)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


def test_dlpack(cuda):  # noqa: F811
    parts = on_device(tokens(100))
    cache, other = cache_of(cuda, "cuda"), cache_of(cuda, "cuda")
    expected = cache.step(0, *parts, exact=True)
    made = [Producer(part) for part in parts]
    out = torch.empty_like(expected)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        other.step(0, *made, exact=True, out=Producer(out))
    stream.synchronize()
    assert torch.equal(out, expected) and made[0].stream == stream.cuda_stream


def test_cupy(cuda):  # noqa: F811
    cupy = pytest.importorskip("cupy", reason="cupy is not installed")
    parts = on_device(tokens(100))
    expected = cache_of(cuda, "cuda").step(0, *parts, exact=True)
    made = [cupy.from_dlpack(part) for part in parts]
    cache = cache_of(cuda, "cuda")
    torch.cuda.synchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        out = cache.step(0, *made, exact=True)
    stream.synchronize()
    assert isinstance(out, cupy.ndarray)
    assert torch.equal(torch.from_dlpack(out), expected)
    codec = cuda.Codec.fit(*(part.transpose(1, 0, 2) for part in (made[1], made[0], made[2])))
    assert codec.device.backend == "cuda"


def test_an_index_reads_rows_in_pinned_memory(cuda):  # noqa: F811
    _, k, v = (part.transpose(0, 1) for part in tokens(2000))
    query = torch.randn(1, HQ, D)
    codec = cuda.Codec.fit(k.cuda(), values=v.cuda())
    index = cuda.Index(codec, 2000)
    index.append(k.cuda(), v.cuda())
    outputs = []
    for place in (lambda t: t.contiguous().pin_memory(), lambda t: t.cuda()):
        rows = [place(part)[None] for part in (k, v)]
        outputs.append(index.step(query.cuda(), *rows, k=64, candidates=0.1))
    assert outputs[0].is_cuda and torch.equal(*outputs)
    host = cuda.Index(cuda.Codec.from_arrays(codec.center, codec.balance, codec.value_center), 2000)
    host.append(k, v)
    wanted = host.step(query, k[None], v[None], k=64, candidates=0.1)
    assert (outputs[0].cpu() - wanted).abs().max() < 1e-4
    hits = index.retrieve(query.cuda(), k=64, candidates=0.1)
    assert hits.positions.is_cuda and (hits.counts == 64).all()


def test_votes_are_those_of_the_cpu(cuda):  # noqa: F811
    _, k, v = (part.transpose(0, 1) for part in tokens(2000))
    query, options = torch.randn(2, HQ, D), dict(candidates=0.1, k=32, tail="mean")
    codec = cuda.Codec.fit(k, values=v, **options)
    arrays = codec.center, codec.balance, codec.value_center
    found = []
    for device in ("cpu", "cuda"):
        own = cuda.Codec.from_arrays(*arrays, device=device, value_dim=D, **options)
        index = cuda.Index(own, 2000)
        index.append(k.to(device), v.to(device))
        asked = query.to(device), dict(sequences=[0, 0])
        votes = index.votes(asked[0], **asked[1])
        candidates = votes.sort(dim=-1, descending=True, stable=True).indices[..., :150]
        candidates = candidates.sort(dim=-1).values.int()
        hits = index.rerank(asked[0], candidates, torch.full((2, H), 150).int(), **asked[1])
        found.append([part.cpu() for part in (votes, candidates, hits.estimates[..., :150],
                                              hits.positions.sort(-1).values)])  # fmt: skip
    assert all(torch.equal(*pair) for pair in zip(*found))


def test_a_row_cache_finds_rows_that_come_again(cuda):  # noqa: F811
    _, k, v = (part.transpose(0, 1) for part in tokens(2000))
    codec = cuda.Codec.fit(k.cuda(), values=v.cuda(), k=32, candidates=0.1)
    index = cuda.Index(codec, 2000)
    index.append(k.cuda(), v.cuda())
    rows = [part.contiguous().pin_memory()[None] for part in (k, v)]
    query, cache = torch.randn(1, HQ, D).cuda(), index.row_cache(64, k.dtype)
    outputs = [index.step(query, *rows, row_cache=cache) for _ in range(2)]
    stats = cache.stats()
    assert (stats.looked_up, stats.found) == (2 * H * 32, H * 32) and stats.rows == 64
    assert torch.equal(*outputs)
    assert (outputs[0] - index.step(query, *rows)).abs().max() < 1e-5


def test_parts_are_merged(cuda):  # noqa: F811
    q, k, v = on_device(tokens(200))
    whole, parts, sums = cache_of(cuda, "cuda"), [], []
    wanted = whole.step(0, q, k, v, exact=True)[-1:]
    for part in (slice(0, 80), slice(80, 200)):
        cache = cache_of(cuda, "cuda")
        cache.append(0, k[part], v[part])
        lse = torch.empty(1, HQ, device="cuda")
        parts.append(cache.attend(0, q[-1:], exact=True, lse=lse))
        sums.append(lse)
    found, _ = cuda.merge(parts, sums)
    assert found.is_cuda and (found - wanted).abs().max() < 1e-4


def test_tensors_elsewhere_are_refused(cuda):  # noqa: F811
    q, k, v = tokens(10)
    cache = cache_of(cuda, "cuda")
    with pytest.raises(TypeError, match="CPU.*'cuda'.*CUDA"):
        cache.append(0, k, v, q)
    with pytest.raises(TypeError, match="CUDA.*'cpu'.*CPU"):
        cache_of(cuda, "cpu").append(0, k.cuda(), v.cuda())
    with pytest.raises(cuda.OutOfRangeError):
        cache.append(1, k.cuda(), v.cuda())
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    parts = on_device((q, k, v))
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        with pytest.raises(cuda.FailedPreconditionError, match="reserve"):
            cache.step(0, *(part[:1] for part in parts))
        parts[0].add_(0)
    cache.step(0, *parts, exact=True)
    assert cache.length() == 10


def test_files_go_between_devices(cuda, tmp_path):  # noqa: F811
    q, k, v = on_device(tokens(300))
    cache, other = cache_of(cuda, "cuda"), cache_of(cuda, "cpu")
    cache.append(0, k, v, q)
    cache.save(tmp_path / "a.pkv")
    slot = other.load(tmp_path / "a.pkv")
    found = other.attend(0, q[-1:].cpu(), sequences=slot)
    assert (cache.attend(0, q[-1:]).cpu() - found).abs().max() < 1e-4
