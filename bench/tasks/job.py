"""A run: model, caches, clock, and where results go."""

import json
import os
import sys
import time
from pathlib import Path

from .answers import ends_of


class Clock:
    def __init__(self, minutes, began):
        self.ends = began + 60 * minutes

    def has(self, seconds):
        """Whether so much time is left."""
        return time.monotonic() + seconds < self.ends


class Job:
    """A model, the methods' caches, and where results go."""

    def __init__(self, world, tokenizer, options, head, began, items=()):
        self.items, self.ends = items, ends_of(world.model, tokenizer)
        self.world, self.tokenizer, self.options, self.head = world, tokenizer, options, head
        self.clock = Clock(options.minutes, began)
        self.extra = {}
        self.began = began

    def say(self, text):
        print(f"[{time.monotonic() - self.began:.0f} s] {text}", file=sys.stderr, flush=True)

    def save(self, found):
        document = {**self.head, **self.extra, **found}
        document["wall_seconds"] = round(time.monotonic() - self.began, 1)
        if self.options.json:
            path = Path(self.options.json)
            part = path.with_suffix(".part")
            part.write_text(dumps(document))
            os.replace(part, path)
        return document


def dumps(document):
    """JSON with a line for each row of a list."""
    lines = []
    for name, value in document.items():
        text = json.dumps(value)
        if isinstance(value, list) and value:
            text = "[\n" + ",\n".join("  " + json.dumps(row) for row in value) + "]"
        lines.append(f"{json.dumps(name)}: {text}")
    return "{" + ",\n".join(lines) + "}\n"
