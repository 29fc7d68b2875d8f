"""The suite after RULER: which prompts, in which batches, within which time."""

import time

from . import prompts, summary, texts
from .answers import Answers


def batches(tasks, count, length, size, make):
    """Lists of (task, number), at most `size` each, numbers first, so that an early end leaves
    all tasks equally long; tasks with short answers are apart from those with long ones."""
    per_task = -(-count // len(tasks))
    queues = []
    for is_long in (False, True):
        some = [task for task in tasks if (prompts.TASKS[task][2] > 48) == is_long]
        pairs = [(task, number) for number in range(per_task) for task in some]
        queues.append([pairs[i : i + size] for i in range(0, len(pairs), size)])
    longest = max(map(len, queues))
    for i in range(longest):  # in proportion, so that both end together
        for queue in queues:
            for j in range(i * len(queue) // longest, (i + 1) * len(queue) // longest):
                yield [make(task, number, length) for task, number in queue[j]]


def run(job):
    """Rows of a prompt each; `job` has world, tokenizer, options, clock, say, save."""
    options, rows, seconds = job.options, [], []
    text = texts.read(options.text[0])
    kit = prompts.Kit(job.tokenizer, texts.Corpus(job.tokenizer, text), options.chat)
    slowest = 0
    answers = Answers(job.world, job.tokenizer, job.ends)
    job.extra["text"] = {"name": options.text[0], "sha256": texts.digest(text)}

    def make(task, number, length):
        return prompts.make(kit, task, number, length, options.seed)

    for length in options.lengths:
        size = max(1, min(options.batch, options.batch_tokens // length))
        for batch in batches(options.tasks, options.prompts, length, size, make):
            if not job.clock.has(slowest):
                job.extra["stopped"] = f"--minutes, at {length} tokens"
                return finish(job, rows, seconds)
            began = time.perf_counter()
            found, spent = answers.ask(batch, options.ask == "index")
            for i, prompt in enumerate(batch):
                row = {
                    "task": prompt.task,
                    "length": length,
                    "number": prompt.number,
                    "scores": {m: round(scores[i], 4) for m, (scores, _) in found.items()},
                }
                if options.keep_text:
                    row["references"] = prompt.references
                    row["said"] = {m: said[i] for m, (_, said) in found.items()}
                rows.append(row)
            slowest = max(slowest, time.perf_counter() - began)
            spent = {name: round(value, 3) for name, value in spent.items()}
            seconds.append({"length": length, "prompts": len(batch), **spent})
            job.say(f"{length} tokens: {len(rows)} prompts")
            job.save(finish(job, rows, seconds))
    return finish(job, rows, seconds)


def finish(job, rows, seconds):
    return {**summary.summarise(rows), "seconds": seconds, "results": rows}
