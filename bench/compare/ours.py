"""Our side of the comparison: the whole step, retrieve, and vote and select as single stages."""

import ctypes as c
import math

import torch

from bench.compare import capi
from bench.compare.capi import I32, I64, Dense, Hits, Rows, Step, tensor
from bench.compare.context import (
    DENSE,
    HEAD_DIM,
    KV_HEADS,
    QUERY_HEADS,
    ROW_BYTES,
    make_context,
    make_queries,
)

K = 100
FIT_KEYS, FIT_QUERIES = 65536, 64
VOTE_BYTES = HEAD_DIM // 8 + 2  # per key: signs and factor
RERANK_BYTES = 3 * HEAD_DIM // 8 + 2  # per candidate: magnitudes and factor
INDEX_BYTES = 96  # per key and KV head, an upper bound for the sizes of layouts
PILOT_KEYS = 8192


def ppm_of(share):
    """A share of candidates in millionths (docs/algorithm.md, 5)."""
    return max(1, round(share * 1e6))


def candidate_count(n, share, k=K):
    """C of docs/algorithm.md, 5."""
    return min(n, max(k, -(-n * ppm_of(share) // 1_000_000)))


def configuration(library, share, **options):
    return capi.config(
        library, head_dim=HEAD_DIM, candidates=f"{ppm_of(share) / 1e6:.6f}", **options
    )


def fit(library, context):
    """A codec from the first keys of a zone, and queries of their own."""
    keys, values = context.part("zone")
    queries = make_queries(FIT_QUERIES, seed=99)[:, 0].transpose(0, 1)
    config = configuration(library, 1.0)
    return capi.fit(library, config, keys[:, :FIT_KEYS], queries, values[:, :FIT_KEYS])


class Layer:
    """Index over the zone of a context."""

    def __init__(self, library, codec, context):
        self.library, self.codec, self.context = library, codec, context
        self.index = capi.index(library, codec, *context.part("zone"))


class StepMethod:
    """pkv_step_run over layers in turn."""

    def __init__(self, library, layers, queries, share, k=K):
        self.library, self.queries = library, queries
        self.output = torch.zeros((1, QUERY_HEADS, HEAD_DIM))
        self.lse = torch.zeros((1, QUERY_HEADS))
        config = configuration(library, share, k=k)
        self.plans = [capi.plan(library, layer.index, config, QUERY_HEADS) for layer in layers]
        self.steps = [self._step(layer.context) for layer in layers]

    def _step(self, context):
        parts = [rows_of(context.part(name)) for name in ("sink", "tail")]
        step = Step(
            dense_count=2,
            query=tensor(self.queries[0]),
            dense=(Dense * 4)(*(Dense(rows=rows) for rows in parts)),
            source=rows_of(context.part("zone")),
            output=tensor(self.output),
            lse=self.lse.data_ptr(),
        )
        step.kept += parts
        return step

    def run(self, turn):
        layer = turn % len(self.steps)
        step = self.steps[layer]
        step.query.data = self.queries[turn % len(self.queries)].data_ptr()
        self.library.call(
            "pkv_step_run", self.plans[layer], self.library.stream, c.byref(step)
        )  # fmt: skip
        self.library.sync()
        return self.output


def rows_of(pair):
    keys, values = (tensor(view[None]) for view in pair)
    return Rows(keys=keys, values=values)


def step_bytes(n, share, samples=512):
    """What a step has to read: votes, records of candidates and samples, rows."""
    candidates = candidate_count(n, share)
    sketch = HEAD_DIM // 2 + 2
    sampled = min(samples, -(-n // 16)) * (VOTE_BYTES + RERANK_BYTES + sketch)
    rows = (min(K, candidates) + DENSE) * ROW_BYTES
    return KV_HEADS * (n * VOTE_BYTES + candidates * RERANK_BYTES + sampled + rows)


class RetrieveMethod:
    """pkv_retrieve with one query per KV head and token: vote, exact selection of C, rerank of all
    C unless k is 0. Tokens are queries of one sequence, which vote together."""

    def __init__(self, library, layers, queries, share, tokens=1, k=K):
        self.library = library
        turns = one_per_head(queries)  # [count, 1, h, d]
        self.queries = torch.cat([turns.roll(-token, 0) for token in range(tokens)], 1)
        config = configuration(library, share, tail="drop", k=k)
        self.plans = [capi.plan(library, layer.index, config, KV_HEADS, tokens) for layer in layers]
        count = candidate_count(layers[0].context.n, share)
        self.positions = torch.zeros((tokens, KV_HEADS, max(k, 1)), dtype=torch.int32)
        self.counts = torch.zeros((tokens, KV_HEADS), dtype=torch.int32)
        self.candidates = torch.zeros((tokens, KV_HEADS, count), dtype=torch.int32)
        self.hits = Hits(
            positions=self.positions.data_ptr(),
            counts=self.counts.data_ptr(),
            candidates=self.candidates.data_ptr(),
        )
        self.query = tensor(self.queries[0])

    def run(self, turn):
        self.query.data = self.queries[turn % len(self.queries)].data_ptr()
        self.library.call(
            "pkv_retrieve", self.plans[turn % len(self.plans)], self.library.stream,
            c.byref(self.query), None, c.byref(self.hits),
        )  # fmt: skip
        self.library.sync()
        return self.candidates[0]


def one_per_head(queries):
    """[count, 1, h, d]: of every group the first head."""
    return queries[:, :, :: QUERY_HEADS // KV_HEADS].contiguous()


class VoteSelectMethod:
    """The stages vote and select of the stage API, one after the other: votes of all keys are
    written and read again, and each call allocates its scratch. Retrieve does better than that."""

    def __init__(self, library, layers, queries, share):
        self.library = library
        self.queries = one_per_head(queries)
        self.n = n = layers[0].context.n
        self.codec = codec_params(library, layers[0].codec)
        self.sequence = torch.zeros(1, dtype=torch.int32)
        self.length = torch.tensor([n])
        self.batch = capi.Batch(
            batch=1,
            sequences=self.sequence.data_ptr(),
            lengths=self.length.data_ptr(),
            max_length=n,
        )
        self.votes = torch.zeros((KV_HEADS, n))
        self.candidates = torch.zeros((KV_HEADS, candidate_count(n, share)), dtype=torch.int32)
        self.counts = torch.zeros(KV_HEADS, dtype=torch.int32)
        self.memory = []
        self.vote_args = [self._vote_args(self._encode(layer.context)) for layer in layers]
        self.select_args = self._select_args(share)

    def _encode(self, context):
        size = I64()
        self.library.call(
            "pkv_store_row_bytes", self.library.device, self.codec.geometry, I64(self.n),
            c.byref(size),
        )  # fmt: skip
        memory = torch.zeros(KV_HEADS * size.value + capi.ALIGNMENT, dtype=torch.uint8)
        start = -memory.data_ptr() % capi.ALIGNMENT
        store = capi.Store(base=memory.data_ptr() + start, row_bytes=size.value, capacity=self.n)
        keys, values = (view[None] for view in context.part("zone"))
        sums = torch.zeros((KV_HEADS, HEAD_DIM), dtype=torch.float64)
        good, start = torch.zeros(KV_HEADS, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
        args = capi.EncodeArgs(
            batch=1,
            codec=self.codec,
            keys=tensor(keys),
            values=tensor(values),
            sequences=self.sequence.data_ptr(),
            starts=start.data_ptr(),
            counts=self.length.data_ptr(),
            store=store,
            value_sums=sums.data_ptr(),
            good_counts=good.data_ptr(),
        )
        self._stage("encode", args)
        self.memory.append(memory)
        return store

    def _vote_args(self, store):
        return capi.VoteArgs(
            query_heads=KV_HEADS,
            vote_group=1,
            rho_of=1,
            codec=self.codec,
            batch=self.batch,
            queries=tensor(self.queries[0]),
            store=store,
            votes=self.votes.data_ptr(),
            votes_stride=self.n,
        )

    def _select_args(self, share):
        rule = capi.CandidateRule(k=K, steps=1)
        rule.below[0], rule.ppm[0] = 2**63 - 1, ppm_of(share)
        return capi.SelectArgs(
            kv_heads=KV_HEADS,
            batch=self.batch,
            rule=rule,
            votes=self.votes.data_ptr(),
            votes_stride=self.n,
            candidates=self.candidates.data_ptr(),
            candidates_stride=self.candidates.shape[1],
            candidate_counts=self.counts.data_ptr(),
        )

    def _stage(self, stage, args):
        self.library.call(
            f"pkv_stage_{stage}_sync", self.library.device, self.library.stream, c.byref(args)
        )

    def run(self, turn):
        args = self.vote_args[turn % len(self.vote_args)]
        args.queries.data = self.queries[turn % len(self.queries)].data_ptr()
        self._stage("vote", args)
        self._stage("select", self.select_args)
        return self.candidates


def codec_params(library, codec):
    """Parameters of a codec as the stage API takes them."""
    data, geometry = capi.CodecData(), capi.Geometry()
    library.call("pkv_codec_export", codec, c.byref(data))
    library.call("pkv_codec_geometry", codec, c.byref(geometry))
    size = KV_HEADS * HEAD_DIM
    balance = torch.tensor((c.c_float * size).from_address(data.balance)[:])
    inverse = 1 / balance
    signs = [torch.zeros(HEAD_DIM) for _ in range(4)]
    for stream, vector in enumerate(signs, 1):
        library.call(
            "pkv_sign_vector", c.c_uint64(geometry.seed), I32(stream), I32(HEAD_DIM),
            capi.P(vector.data_ptr()),
        )  # fmt: skip
    key_1, key_2, value_1, value_2 = (vector.data_ptr() for vector in signs)
    params = capi.CodecParams(
        geometry=c.pointer(geometry),
        center=data.center,
        balance=data.balance,
        inv_balance=inverse.data_ptr(),
        signs_1=key_1,
        signs_2=key_2,
        value_center=data.value_center,
        value_signs_1=value_1,
        value_signs_2=value_2,
    )
    params.kept += [codec, geometry, inverse, signs]
    return params


def pilot_layer(library, codec):
    """A small layer whose steps wake the threads."""
    return Layer(library, codec, make_context(PILOT_KEYS, seed=98))


def step_error(library, reference, n=1024):
    """Largest difference between a step that fetches every key and `reference(context, query)`,
    relative to the reference's largest number."""
    context = make_context(n, seed=97)
    layer = Layer(library, fit(library, context), context)
    queries = make_queries(3, seed=96, scale=2.0)
    method = StepMethod(library, [layer], queries, share=1.0, k=n)
    worst = 0.0
    for turn, query in enumerate(queries):
        wanted = reference(context, query[0])
        error = float((method.run(turn)[0] - wanted).abs().max() / wanted.abs().max())
        worst = error if math.isnan(error) else max(worst, error)
    return worst
