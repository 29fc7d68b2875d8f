"""One rank of test_distributed.py: argv = rank, ranks, rendezvous file, what to do."""

import os
import sys
from datetime import timedelta

import pariskv
import torch
import torch.distributed as dist
from pariskv.distributed import (
    HeadParallel,
    SequenceParallel,
    ShardedIndex,
    broadcast_codec,
    merge,
)

H, HQ, D, N = 4, 8, 32, 640
SHAPE = dict(sink=16, local=32, interval=32, dense_below=64, page_tokens=64, dtype="float32")
ALL = dict(k=4096, candidates=1.0)


def tokens():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(N + 8, heads, D, generator=generator) for heads in (HQ, H, H)]


def whole():
    """One cache of everything, and its outputs of eight steps."""
    query, keys, values = tokens()
    cache = pariskv.Cache(1, H, HQ, D, **SHAPE, **ALL)
    cache.add()
    cache.append(0, keys[:N], values[:N], query[:N])
    steps = range(N, N + 8)
    return [cache.step(0, *(rows[i : i + 1] for rows in (query, keys, values))) for i in steps]


def by_sequence(ranks, **options):
    query, keys, values = tokens()
    shard = SequenceParallel(pariskv.Cache(1, H, HQ, D, **SHAPE, **{**ALL, **options}), block=64)
    shard.add()
    shard.append(0, keys[:N], values[:N], query[:N])
    assert shard.length() == N
    # No rank holds everything, each holds something.
    assert 0 < shard.cache.length() < N or ranks == 1
    steps = range(N, N + 8)
    return [shard.step(0, *(rows[i : i + 1] for rows in (query, keys, values))) for i in steps]


def by_heads(ranks):
    query, keys, values = tokens()
    shard = HeadParallel(pariskv.Cache(1, H // ranks, HQ // ranks, D, **SHAPE, **ALL))
    shard.cache.add()
    shard.append(0, keys[:N], values[:N], query[:N])
    steps = range(N, N + 8)
    return [shard.step(0, *(rows[i : i + 1] for rows in (query, keys, values))) for i in steps]


def same_everywhere(outputs, ranks):
    mine = torch.cat(outputs)
    parts = [torch.empty_like(mine) for _ in range(ranks)]
    dist.all_gather(parts, mine)
    assert all(torch.equal(part, mine) for part in parts)


def equality(rank, ranks):
    wanted = torch.cat(whole())
    for found in (by_sequence(ranks), by_heads(ranks)):
        same_everywhere(found, ranks)
        assert (torch.cat(found) - wanted).abs().max() < 1e-5
    few = by_sequence(ranks, k=4, candidates=0.02, tail="drop")
    assert (torch.cat(few) - wanted).abs().max() > 1e-3  # or the above could not fail
    # A rank without tokens adds nothing.
    lse = torch.zeros(1, HQ) if rank == 0 else torch.full((1, HQ), float("-inf"))
    out, total = merge(torch.ones(1, HQ, D) * (rank == 0), lse)
    assert torch.equal(out, torch.ones(1, HQ, D)) and not total.any()


def zone(count, kind):
    """Queries [3, hq, d], keys and values [h, n, d]; "alike": of a few kinds of keys."""
    generator = torch.Generator().manual_seed(count)
    query, keys, values = (
        torch.randn(*shape, D, generator=generator) for shape in ((3, HQ), (H, count), (H, count))
    )
    if kind == "alike":
        keys = keys[:, torch.arange(count) * 7 % 5]
    if kind == "apart":  # the queries' keys in the blocks of one rank alone
        first = torch.arange(count) // 64 % 2 == 0
        keys[:, first] += 2 * query[0].view(H, -1, D).mean(1, keepdim=True)
    return query, keys, values


def whole_index(query, keys, values, options):
    codec = pariskv.Codec.fit(keys, query.transpose(0, 1), values, **options)
    index = pariskv.Index(codec, keys.shape[1])
    index.append(keys, values)
    return codec, index


def sharded(codec, keys, values, budgets="global", spare=100):
    shard = ShardedIndex(codec, keys.shape[1] + spare, budgets=budgets, block=64)
    pieces = keys.split(333, 1), values.split(333, 1)
    for piece in zip(*pieces):
        shard.append(*piece)
    assert shard.length == keys.shape[1]
    return shard


def positions_of(rows):
    """A set of each row of [.., n]."""
    return [set(row.tolist()) - {-1} for row in rows.flatten(0, -2)]


def union_of_ranks(mine, ranks):
    parts = [None] * ranks
    dist.all_gather_object(parts, positions_of(mine))
    for rows in zip(*parts):  # no rank has another's
        assert sum(map(len, rows)) == len(set().union(*rows))
    return [set().union(*rows) for rows in zip(*parts)]


def one_device(ranks, count, kind, **options):
    query, keys, values = zone(count, kind)
    codec, index = whole_index(query, keys, values, options)
    named = [0] * len(query)
    wanted = index.retrieve(query, sequences=named)
    # The codec goes round: ranks must have the very same.
    here = codec if dist.get_rank() == 0 else None
    codec = broadcast_codec(here, value_dim=D, **options)
    shard = sharded(codec, keys, values)
    assert ranks == 1 or shard.own_length() < count or count <= 64
    found = shard.retrieve(query)
    assert union_of_ranks(found.candidates, ranks) == positions_of(wanted.candidates)
    total = found.candidate_counts.clone()
    dist.all_reduce(total)
    assert torch.equal(total.int(), wanted.candidate_counts)
    assert torch.equal(found.counts.int(), wanted.counts)
    assert positions_of(found.positions) == positions_of(wanted.positions)
    same = wanted.scores.isfinite()
    assert (found.scores - wanted.scores)[same].abs().max() < 1e-4
    dense = [tuple(torch.randn(3, H, 20, D, generator=torch.Generator().manual_seed(s))
                   for s in (1, 2))]  # fmt: skip
    for parts in ([], dense):
        expected, lse = torch.empty(3, HQ, D), torch.empty(3, HQ)
        index.step(query, keys[None], values[None], sequences=named, dense=parts, out=expected,
                   lse=lse)  # fmt: skip
        out, total = shard.step(query, dense=parts)
        # float32 sums of some hundred terms; the sums of samples are made in another order.
        assert (out - expected).abs().max() < 1e-5, (count, kind, options)
        assert (total - lse).abs().max() < 1e-5
        same_everywhere([out], ranks)
    # Budgets of each rank attend to something else, or the above could not fail.
    own, _ = sharded(codec, keys, values, "rank").step(query)
    same_everywhere([own], ranks)
    index.step(query, keys[None], values[None], sequences=named, out=expected)
    return (own - expected).abs().max()


def budgets(rank, ranks):
    few = dict(k=24, candidates=0.05)
    differs = [
        one_device(ranks, 3000, "random", tail=tail, rank=order, **few)
        for tail in ("drop", "mean")
        for order in ("group", "mean")
    ]
    assert min(differs) > 1e-3, differs
    one_device(ranks, 3000, "apart", tail="mean", **few)
    one_device(ranks, 3000, "alike", tail="mean", **few)
    one_device(ranks, 3000, "random", tail="mean", soft_cap=5, scale=0.3, tail_samples=64, **few)
    one_device(ranks, 3000, "random", tail="mean", vote_group="heads", codec="scalar5", **few)
    one_device(ranks, 60, "random", tail="mean", **few)  # one rank has everything
    one_device(ranks, 10, "random", tail="drop", **few)  # fewer than k
    # With every key a candidate both are full attention.
    assert one_device(ranks, 500, "random", tail="drop", k=500, candidates=1.0) < 1e-5
    refusals()


def refusals():
    def refused(word, **options):
        query, keys, values = zone(600, "random")
        codec, _ = whole_index(query, keys, values, options)
        try:
            ShardedIndex(codec, 1000)
        except ValueError as error:
            assert word in str(error), error
        else:
            raise AssertionError(word)

    refused("tail is 'sampled'", candidates=0.1)
    refused('candidates is "auto"', tail="mean")
    refused("vote is 'tier'", vote="tier", tail="drop", candidates=0.1)
    refused("share is", tail="mean", candidates=0.1, share=0.5)
    query, keys, values = zone(600, "random")
    codec, _ = whole_index(query, keys, values, dict(tail="mean", candidates=0.1))
    for word, call in (
        ("budgets is 'both'", lambda: ShardedIndex(codec, 1000, budgets="both")),
        ("block is 0", lambda: ShardedIndex(codec, 1000, block=0)),
        ("capacity is 600", lambda: sharded(codec, keys, values, spare=0).append(keys, values)),
        ('budgets="global"', lambda: sharded(codec, keys, values, "rank").retrieve(query)),
        ("no tokens", lambda: ShardedIndex(codec, 1000).step(query, [(keys[None], values[None])])),
    ):
        try:
            call()
        except ValueError as error:
            assert word in str(error), error
        else:
            raise AssertionError(word)


def budgets_death(rank, ranks):
    query, keys, values = zone(3000, "random")
    codec, _ = whole_index(query, keys, values, dict(tail="mean", candidates=0.05))
    shard = sharded(codec, keys, values)
    shard.step(query)
    if rank == ranks - 1:
        os._exit(7)
    try:
        shard.step(query)
    except RuntimeError:
        print("the others are told")
        sys.stdout.flush()
        os._exit(0)
    raise SystemExit("nobody noticed")


def death(rank, ranks):
    by_sequence(ranks)
    if rank == ranks - 1:
        os._exit(7)
    try:
        by_sequence(ranks)
    except RuntimeError:
        print("the others are told")
        sys.stdout.flush()
        os._exit(0)
    raise SystemExit("nobody noticed")


if __name__ == "__main__":
    number, count = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{sys.argv[3]}",
        rank=number,
        world_size=count,
        timeout=timedelta(seconds=50),
    )
    what = {f.__name__: f for f in (equality, death, budgets, budgets_death)}
    what[sys.argv[4]](number, count)
    dist.destroy_process_group()
