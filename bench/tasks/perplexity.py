"""Perplexity of held text behind a prefill, teacher-forced, against full attention."""

import math
import time

import numpy as np
import torch

from bench.rules.stats import summary

from . import texts

CHUNK = 64  # tokens whose mean loss is one sample of the interval


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


def forced(job, some, begin, block, look=None):
    """{method: losses [b, t]} of the tokens behind `begin` of equally long pieces, and seconds per
    forward. look(method, position, cache) is called before every forward."""
    world = job.world
    ids = torch.tensor([ids for _, _, ids in some], device=world.device)
    caches, _ = world.prefill(ids[:, :begin].tolist(), ids.shape[1])
    found, seconds = {}, {}
    for method, cache in caches.items():
        parts, began = [], time.perf_counter()
        steps = world.losses(ids, cache, begin, block)
        while True:
            at = begin + sum(part.shape[1] for part in parts)
            if look is not None:
                look(method, at, cache)
            step = next(steps, None)
            if step is None:
                break
            parts.append(step[1])
        found[method] = torch.cat(parts, 1).double().cpu().numpy()
        seconds[method] = (time.perf_counter() - began) / len(parts)
    return found, seconds


def chunk_means(losses):
    whole = losses.shape[1] // CHUNK * CHUNK
    if not whole:
        return losses.mean(axis=1)
    return losses[:, :whole].reshape(len(losses), -1, CHUNK).mean(axis=2).ravel()


def compared(losses, full):
    """Perplexity and its change against full attention's, in per cent, with an interval."""
    found = {"perplexity": math.exp(losses.mean()), "loss": float(losses.mean()),
             "tokens": losses.size}  # fmt: skip
    if full is not None and full is not losses:
        found["change_percent"] = 100 * math.expm1(losses.mean() - full.mean())
        spread = summary(chunk_means(losses) - chunk_means(full))
        found["change_interval"] = [100 * math.expm1(spread[end]) for end in ("low", "high")]
    return found


def run(job):
    options = job.options
    length = options.prompt + options.tokens + 1
    size = max(1, min(options.batch, options.batch_tokens // length))
    waiting, rows, held, slowest = pieces(job, length), [], {}, 0
    for i in range(0, len(waiting), size):
        if not job.clock.has(slowest):
            job.extra["stopped"] = f"--minutes, after {i} pieces"
            break
        began, some = time.perf_counter(), waiting[i : i + size]
        found, seconds = forced(job, some, options.prompt, options.block)
        for method, losses in found.items():
            held.setdefault(method, []).append(losses)
            for (name, number, _), own in zip(some, losses):
                rows.append({"text": name, "piece": number, "method": method,
                             "loss": round(float(own.mean()), 6),
                             "ms_per_forward": round(1e3 * seconds[method], 3)})  # fmt: skip
        slowest = max(slowest, time.perf_counter() - began)
        job.say(f"{i + len(some)} of {len(waiting)} pieces")
        job.save(finish(held, rows))
    return finish(held, rows)


def finish(held, rows):
    whole = {method: np.concatenate(parts) for method, parts in held.items()}
    totals = {m: compared(losses, whole.get("full")) for m, losses in whole.items()}
    return {"totals": totals, "results": rows}


def lines_of(found):
    for method, row in found["totals"].items():
        line = f"{method:24} perplexity {row['perplexity']:.4f} over {row['tokens']} tokens"
        if "change_percent" in row:
            low, high = row["change_interval"]
            line += f", {row['change_percent']:+.3f} % ({low:+.3f} .. {high:+.3f})"
        yield line
