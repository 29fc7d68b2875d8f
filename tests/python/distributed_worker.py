"""One rank of test_distributed.py: argv = rank, ranks, rendezvous file, what to do."""

import os
import sys
from datetime import timedelta

import pariskv
import torch
import torch.distributed as dist
from pariskv.distributed import HeadParallel, SequenceParallel, merge

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
    {"equality": equality, "death": death}[sys.argv[4]](number, count)
    dist.destroy_process_group()
