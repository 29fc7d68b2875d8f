"""A long generation: loss over time against full attention, and how much of the exact best keys the
candidates still hold, with the codec in use and with one that is fitted at that very step."""

import numpy as np
import pariskv
import torch

from . import perplexity

BEST = 100  # keys by the group's mean score


class Watch:
    """Keeps the last queries of some layers while a cache is in use."""

    def __init__(self, cache, layers, keep):
        self.layers, self.keep, self.queries = layers, keep, {}
        self.inner, cache.attend_layer = cache.attend_layer, self.attend_layer

    def attend_layer(self, number, query, *rest):
        if number in self.layers:
            held = self.queries.get(number)
            joined = query if held is None else torch.cat([held, query], 2)
            self.queries[number] = joined[:, :, -self.keep :].clone()
        return self.inner(number, query, *rest)


def candidate_recall(index, queries, best):
    """Mean share of `best` [m, h, 100] among the candidates of queries [m, hq, d]."""
    hits = index.retrieve(queries, sequences=[0] * len(queries))
    counts, candidates = hits.candidate_counts.cpu().numpy(), hits.candidates.cpu().numpy()
    shares = [
        np.isin(best[i, head], candidates[i, head, : counts[i, head]]).mean()
        for i, head in np.ndindex(*counts.shape)
    ]
    return float(np.mean(shares))


def recalls(world, method, cache, watch, row):
    """Per watched layer (in use, refitted) of row `row`, for the last 16 queries seen."""
    store, slot = cache.store, cache.slots[row]
    names = {option.name for option in pariskv.options()}
    options = {n: v for n, v in world.methods[method].items() if n in names}
    profile = world.methods[method].get("profile", "default")
    options["scale"] = cache._scale
    found = []
    for layer in watch.layers:
        regions = store.regions(slot, layer)
        keys, values = store.rows(layer, slot, regions.sink, regions.zone, torch.empty(0))
        keys, values = keys.to(world.device), values.to(world.device)
        queries = watch.queries[layer][row]  # [hq, m, d]
        judges = queries[:, -16:].transpose(0, 1).contiguous()
        mean = judges.float().unflatten(1, (len(keys), -1)).mean(2)
        scores = torch.einsum("mhd,hnd->mhn", mean, keys.float())
        best = scores.topk(min(BEST, keys.shape[1]), -1).indices.cpu().numpy()
        old = queries[:, :-16].contiguous()  # not those that judge
        refit = pariskv.Codec.fit(keys, old, values, profile=profile, **options)
        used = store.codec(layer, slot)
        used = pariskv.Codec.from_arrays(
            used.center, used.balance, used.value_center, profile=profile,
            device=refit.device, value_dim=values.shape[2], **options)  # fmt: skip
        pair = []
        for codec in (used, refit):
            index = pariskv.Index(codec, keys.shape[1])
            index.append(keys, values)
            pair.append(candidate_recall(index, judges, best))
        found.append(pair)
    return found


def run(job):
    options, world = job.options, job.world
    length = options.prompt + options.tokens + 1
    size = max(1, min(options.batch, options.batch_tokens // length))
    some = perplexity.pieces(job, length)[:size]
    policies = pariskv.hf.shape_of(world.model.config).policies
    sparse = [i for i, policy in enumerate(policies) if policy == "sparse"]
    layers = sorted({sparse[i * (len(sparse) - 1) // 3] for i in range(4)})
    watches, rows = {}, []

    def look(method, at, cache):
        if method.startswith(("full", "mapped")):
            return
        if method not in watches:
            watches[method] = Watch(cache, layers, options.fit_queries + 16)
        since = at - options.prompt
        if since == 0 or since % options.every or not watches[method].queries:
            return
        pairs = np.array([recalls(world, method, cache, watches[method], r)
                          for r in range(min(len(some), options.judged))])  # fmt: skip
        used, refit = pairs.mean(axis=(0, 1))
        rows.append({"method": method, "tokens": at, "layers": layers,
                     "recall": round(float(used), 4), "recall_refitted": round(float(refit), 4),
                     "per_layer": pairs.mean(axis=0).round(4).tolist()})  # fmt: skip
        job.say(f"{method}: {at} tokens")

    def finish(found, seconds):
        over_time, full = [], found.get("full")
        for method, losses in found.items():
            for begin in range(0, losses.shape[1], options.every):
                part = slice(begin, begin + options.every)
                against = None if full is None or method == "full" else [full[:, part]]
                over_time.append({"method": method, "from": options.prompt + begin,
                                  **perplexity.compared([losses[:, part]], against)})  # fmt: skip
        return {
            "pieces": [{"text": name, "piece": number} for name, number, _ in some],
            "ms_per_forward": {m: round(1e3 * value, 3) for m, value in seconds.items()},
            "recall": rows,
            "loss": over_time,
            "totals": {
                m: perplexity.compared([x], None if full is None or m == "full" else [full])
                for m, x in found.items()
            },
        }

    latest = {}, {}
    turns = perplexity.forced(job, some, options.prompt, options.block, options.every, look)
    for latest in turns:
        job.save(finish(*latest))
    for watch in watches.values():
        watch.inner.__self__.__dict__.pop("attend_layer")
    return finish(*latest)


def lines_of(found):
    for row in found["recall"]:
        yield (f"{row['method']:24} {row['tokens']:>7} tokens  candidate recall "
               f"{row['recall']:.3f}, refitted {row['recall_refitted']:.3f}")  # fmt: skip
    for row in found["loss"]:
        change = f", {row['change_percent']:+.2f} %" if "change_percent" in row else ""
        line = f"{row['method']:24} from {row['from']:>7}: perplexity {row['perplexity']:.3f}"
        yield line + change
    yield from perplexity.lines_of(found)
