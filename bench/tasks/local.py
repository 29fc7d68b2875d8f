"""Published benchmarks from local files: each question with every method, some samples each."""

import time

import torch

from . import files, summary
from .answers import cut, greedy, sampler
from .judges import judge


def drawing(options):
    """(temperature, samples) where none are given: greedy once, or as reasoning models want it."""
    reasons = options.suite in ("math500", "aime25", "gpqa")
    temperature = options.temperature
    if temperature is None:
        temperature = 0.6 if reasons else 0.0
    samples = options.samples or (8 if options.suite == "aime25" else 1)
    return temperature, samples


def tokens_of(item, tokenizer, chat, most):
    """Ids; texts of more than `most` tokens lose their middle, as LongBench has it."""
    before, after = "", ""
    if chat:
        said = [{"role": "user", "content": "<here>"}]
        whole = tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
        before, after = whole.split("<here>")
    start = [] if chat else tokenizer("").input_ids
    first, text, last = (
        tokenizer(part, add_special_tokens=False).input_ids
        for part in (before, item.text, after + item.prefix)
    )
    room = most - len(start) - len(first) - len(last)
    if len(text) > room:
        text = text[: room // 2] + text[len(text) - (room - room // 2) :]
    return start + first + text + last


def batches(options, rows, samples):
    """Lists of (item, ids), short prompts first, whose samples and tokens fit into a batch."""
    batch = []
    for item, ids in sorted(rows, key=lambda pair: len(pair[1])):
        longest = len(ids) + item.new_tokens
        many = samples * (len(batch) + 1)
        if batch and (many > options.batch or many * longest > options.batch_tokens):
            yield batch
            batch = []
        batch.append((item, ids))
    if batch:
        yield batch


def size_of(tokens):
    size = 1024
    while size < tokens:
        size *= 2
    return size


def answer(job, batch, samples, pick_of, seconds):
    """{method: texts} of every item's samples, in one batch of items times samples."""
    world, tokenizer = job.world, job.tokenizer
    rows = [ids for _, ids in batch for _ in range(samples)]
    limits = [item.new_tokens for item, _ in batch for _ in range(samples)]
    began = time.perf_counter()
    caches, logits = world.prefill(rows, max(map(len, rows)) + max(limits))
    seconds["prefill"] = round(time.perf_counter() - began, 3)

    def is_done(tokens):
        pairs = zip(tokens, limits)
        return all(len(row) >= limit or job.ends & set(row) for row, limit in pairs)

    found = {}
    for method, cache in caches.items():
        began = time.perf_counter()
        tokens = world.decode(cache, logits, rows, max(limits), pick_of(), is_done)
        kept = [cut(row, limit, job.ends) for row, limit in zip(tokens, limits)]
        found[method] = [tokenizer.decode(row, skip_special_tokens=True) for row in kept]
        seconds[method] = round(time.perf_counter() - began, 3)
    return found


def run(job):
    options = job.options
    items = job.items
    temperature, samples = drawing(options)
    if options.new_tokens:
        items = [files.Item(**{**vars(i), "new_tokens": options.new_tokens}) for i in items]
    chat = options.chat
    if chat is None:
        chat = options.suite != "ruler" and bool(job.tokenizer.chat_template)
    most = options.max_tokens or job.world.model.config.max_position_embeddings
    ready = []
    for item in items:
        room = most - item.new_tokens
        if room < 64:
            raise ValueError(f"{most} positions are too few for {item.new_tokens} new tokens")
        ready.append((item, tokens_of(item, job.tokenizer, chat, room)))
    job.extra.update(temperature=temperature, top_p=options.top_p, samples=samples, chat=chat)

    def pick_of():
        if temperature == 0:
            return greedy
        made = torch.Generator(device=job.world.device).manual_seed(options.seed)
        return sampler(temperature, options.top_p, made)

    rows, spent, slowest = [], [], 0
    for batch in batches(options, ready, samples):
        if not job.clock.has(slowest):
            job.extra["stopped"] = f"--minutes, after {len(rows)} of {len(ready)}"
            break
        began, seconds = time.perf_counter(), {"items": len(batch)}
        found = answer(job, batch, samples, pick_of, seconds)
        for i, (item, ids) in enumerate(batch):
            rows.append(row_of(item, len(ids), found, i, samples, options))
        slowest = max(slowest, time.perf_counter() - began)
        spent.append(seconds)
        job.say(f"{len(rows)} of {len(ready)}")
        job.save(finish(options, rows, spent, samples))
    return finish(options, rows, spent, samples)


def row_of(item, tokens, found, i, samples, options):
    part = slice(i * samples, (i + 1) * samples)
    marks = {m: [judge(item.kind, said, item.references) for said in texts[part]]
             for m, texts in found.items()}  # fmt: skip
    length = size_of(tokens) if options.suite == "ruler" else item.labels.get("length", "all")
    row = {"name": item.name, "task": item.task, "length": length, "tokens": tokens,
           "scores": {m: sum(s) / samples for m, s in marks.items()}}  # fmt: skip
    if samples > 1:
        row["passed"] = {m: float(max(some) == 1) for m, some in marks.items()}
    row.update({n: value for n, value in item.labels.items() if n != "length"})
    if options.keep_text:
        row["references"] = item.references
        row["said"] = {m: texts[part] for m, texts in found.items()}
    return row


def finish(options, rows, spent, samples):
    least = summary.LEAST if options.suite == "ruler" else 0
    found = summary.summarise(rows, least)
    if samples > 1 and rows:
        passed = [{**row, "scores": row["passed"]} for row in rows]
        found[f"pass_at_{samples}"] = summary.summarise(passed, 0)["counted"]
    return {**found, "seconds": spent, "results": rows}


def lines_of(found):
    yield from summary.lines_of(found)
    for name, rows in found.items():
        if name.startswith("pass_at_"):
            for row in rows:
                share = f"{100 * row['score']['mean']:.1f} % of {row['prompts']}"
                yield f"{name} {row['length']} {row['method']}: {share}"
