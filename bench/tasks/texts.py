"""Text that comes with Python and with this repository, as tokens."""

import argparse
import email.message
import hashlib
import inspect
import logging
import random
import tarfile
import typing
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
MODULES = argparse, email.message, inspect, logging, random, tarfile, typing
NOISE = (
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n"
)


def manual():
    """The reference manual that Python brings (pydoc_data.topics)."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def project():
    """This repository's own documents."""
    paths = sorted(REPOSITORY.glob("docs/*.md")) + sorted(REPOSITORY.glob("*.md"))
    return "\n\n".join(path.read_text(encoding="utf-8") for path in paths)


def sources():
    """Source code of some modules of Python's library."""
    return "\n\n".join(inspect.getsource(module) for module in MODULES)


TEXTS = {"manual": manual, "project": project, "sources": sources}


def read(name):
    """A text by its name in TEXTS, or a file's."""
    return TEXTS[name]() if name in TEXTS else Path(name).read_text(encoding="utf-8")


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Corpus:
    """Filler for haystacks: windows of one text, and which of its tokens end a sentence or line."""

    def __init__(self, tokenizer, text):
        self.ids = tokenizer(text, add_special_tokens=False).input_ids
        self.noise = tokenizer(NOISE, add_special_tokens=False).input_ids
        known = sorted({*self.ids, *self.noise})
        pieces = tokenizer.batch_decode([[token] for token in known])
        self.ends = {t for t, piece in zip(known, pieces) if "\n" in piece or piece.endswith(".")}
        words = {word.strip(".,:;()") for word in text.split()}
        self.words = sorted(word for word in words if word.isalpha() and is_word(word))

    def window(self, rng, tokens):
        """So many tokens from a random place on, around the end where need be."""
        begin, found = rng.randrange(len(self.ids)), []
        while len(found) < tokens:
            found += self.ids[begin : begin + tokens - len(found)]
            begin = 0
        return found

    def noise_of(self, tokens):
        return (self.noise * (tokens // len(self.noise) + 1))[:tokens]

    def spread(self, rng, filler, pieces):
        """The filler with the pieces at random depths, in their order, each behind the end of a
        sentence where one is near."""
        depths = sorted(rng.randrange(len(filler) + 1) for _ in pieces)
        found, at = [], 0
        for depth, piece in zip(depths, pieces):
            for place in range(max(depth, at), min(depth + 80, len(filler))):
                if place > 0 and filler[place - 1] in self.ends:
                    depth = place
                    break
            depth = max(depth, at)
            found += filler[at:depth] + piece
            at = depth
        return found + filler[at:]


def is_word(word):
    return word.islower() and word.isascii() and 4 <= len(word) <= 9
