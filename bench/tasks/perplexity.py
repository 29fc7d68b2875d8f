"""Perplexity of held text behind a prefill, teacher-forced, against full attention."""

import itertools
import math
import time

import numpy as np
import torch

from bench.rules.stats import summary

from . import texts

CHUNK = 64  # tokens whose mean loss is one sample of the interval
STRIDE = 64  # tokens between two methods' turns


def pieces(job, length):
    """[(text, number, ids)] of --pieces windows of each text, evenly spread."""
    found = []
    job.extra["texts"] = []
    for name in job.options.text:
        text = texts.read(name)
        ids = job.tokenizer(text).input_ids
        if len(ids) < length:
            raise ValueError(f"text {name} has {len(ids)} tokens, {length} are needed")
        count = min(job.options.pieces, len(ids) // length)
        job.extra["texts"].append({"name": name, "sha256": texts.digest(text), "pieces": count})
        step = (len(ids) - length) // max(1, count - 1) if count > 1 else 0
        found += [(name, i, ids[i * step : i * step + length]) for i in range(count)]
    return found


def forced(job, some, begin, block, stride, look=None):
    """Yields ({method: losses [b, t]}, {method: seconds per forward}) of the tokens behind `begin`
    of equally long pieces, every `stride` tokens, the methods by turns; ends early with the job's
    time. look(method, position, cache) is called before the first forward and behind each stride.
    """
    world = job.world
    ids = torch.tensor([ids for _, _, ids in some], device=world.device)
    caches, _ = world.prefill(ids[:, :begin].tolist(), ids.shape[1])
    steps = {m: world.losses(ids, cache, begin, block) for m, cache in caches.items()}
    found, spent = {m: [] for m in caches}, dict.fromkeys(caches, 0.0)
    at, last, slowest = begin, ids.shape[1] - 1, 0
    while at < last and job.clock.has(slowest):
        began = time.perf_counter()
        for method, cache in caches.items():
            if look is not None and at == begin:
                look(method, at, cache)
            since = time.perf_counter()
            parts = [loss for _, loss in itertools.islice(steps[method], -(-stride // block))]
            found[method].append(torch.cat(parts, 1).double().cpu().numpy())
            spent[method] += time.perf_counter() - since
            if look is not None:
                look(method, min(at + stride, last), cache)
        at = min(at + stride, last)
        slowest = max(slowest, time.perf_counter() - began)
        forwards = -(-(at - begin) // block)
        yield ({m: np.concatenate(parts, 1) for m, parts in found.items()},
               {m: seconds / forwards for m, seconds in spent.items()})  # fmt: skip
    if at < last:
        job.extra["stopped"] = f"--minutes, at {at - begin} tokens behind the prefill"


def chunk_means(losses):
    whole = losses.shape[1] // CHUNK * CHUNK
    if not whole:
        return losses.mean(axis=1)
    return losses[:, :whole].reshape(len(losses), -1, CHUNK).mean(axis=2).ravel()


def compared(losses, full):
    """Perplexity of batches of losses [b, t] and its change against full attention's, in per cent,
    with an interval."""
    every = np.concatenate([part.ravel() for part in losses])
    found = {"perplexity": math.exp(every.mean()), "loss": float(every.mean()),
             "tokens": every.size}  # fmt: skip
    if full is not None and full is not losses:
        mean = np.concatenate([part.ravel() for part in full]).mean()
        found["change_percent"] = 100 * math.expm1(every.mean() - mean)
        pairs = zip(losses, full)
        spread = summary(np.concatenate([chunk_means(a) - chunk_means(b) for a, b in pairs]))
        found["change_interval"] = [100 * math.expm1(spread[end]) for end in ("low", "high")]
    return found


def run(job):
    options = job.options
    length = options.prompt + options.tokens + 1
    size = max(1, min(options.batch, options.batch_tokens // length))
    waiting, done, slowest = pieces(job, length), [], 0
    for i in range(0, len(waiting), size):
        if not job.clock.has(slowest):
            job.extra["stopped"] = f"--minutes, after {i} pieces"
            break
        began, some, latest = time.perf_counter(), waiting[i : i + size], None
        for latest in forced(job, some, options.prompt, options.block, STRIDE):
            job.save(finish([*done, (some, *latest)]))
        if latest is not None:
            done.append((some, *latest))
        slowest = max(slowest, time.perf_counter() - began)
        job.say(f"{i + len(some)} of {len(waiting)} pieces")
    return finish(done)


def finish(done):
    """Of batches (pieces, losses, seconds), the last of which may have ended early."""
    held, rows = {}, []
    for some, found, seconds in done:
        for method, losses in found.items():
            held.setdefault(method, []).append(losses)
            for (name, number, _), own in zip(some, losses):
                rows.append({"text": name, "piece": number, "method": method, "tokens": len(own),
                             "loss": round(float(own.mean()), 6),
                             "ms_per_forward": round(1e3 * seconds[method], 3)})  # fmt: skip
    totals = {m: compared(parts, held.get("full")) for m, parts in held.items()}
    return {"totals": totals, "results": rows}


def lines_of(found):
    for method, row in found["totals"].items():
        line = f"{method:24} perplexity {row['perplexity']:.4f} over {row['tokens']} tokens"
        if "change_percent" in row:
            low, high = row["change_interval"]
            line += f", {row['change_percent']:+.3f} % ({low:+.3f} .. {high:+.3f})"
        yield line
