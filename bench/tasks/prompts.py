"""Prompts after RULER (arXiv:2404.06654, section 3 and appendices), deterministic by seed.

Each prompt has exactly the tokens asked for, so that a batch needs no padding. Sizes are those of
the paper where it states them: 4 keys, values, queries; a chain of 4 hops; 10 common words of 30
occurrences among words of 3 (10 and 1 below 4K tokens, in proportion more above 32K). Not from the
paper: the haystack (Python's manual instead of essays), words (the manual's), and questions about
made-up people instead of SQuAD and HotpotQA, which are read from local files by --suite ruler."""

import random
import uuid
from dataclasses import dataclass

from . import people


@dataclass(frozen=True)
class Prompt:
    task: str
    number: int
    ids: list  # tokens
    asked: int  # tokens of the question, the last ones
    references: list
    new_tokens: int
    is_any: bool = False  # one reference is enough; else the share of them counts


class Kit:
    """What prompts of one model are made of."""

    def __init__(self, tokenizer, corpus, chat=False):
        self.tokenizer, self.corpus = tokenizer, corpus
        self.before, self.after = "", ""
        if chat:
            said = [{"role": "user", "content": "<here>"}]
            whole = tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
            self.before, self.after = whole.split("<here>")
        self.newline = self.ids("\n")[-1:]
        start = tokenizer("").input_ids  # what the tokenizer puts before every text
        self.start = [] if chat and self.before else start

    def ids(self, text):
        """Tokens of a text, or of each of a list."""
        return self.tokenizer(text, add_special_tokens=False).input_ids

    def assemble(self, tokens, head, tail, prefix, body):
        """(ids, tokens of the question): head, body(room), newlines up to the length, tail."""
        first = self.start + self.ids(self.before + head)
        last = self.ids(tail + self.after + prefix)
        room = tokens - len(first) - len(last)
        context = body(room) if room > 0 else []
        if room <= 0 or len(context) > room:
            raise ValueError(f"{tokens} tokens are too few for this task; take a larger --lengths")
        return first + self.newline * (room - len(context)) + context + last, len(last)


NEEDLE = "One of the special magic {}s for {} is: {}."
HEAD = (
    "Some special magic {0}s are hidden within the following text. Make sure to memorize it. I "
    "will quiz you about the {0}s afterwards.\n"
)


def listed(names):
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + ", and " + names[-1]


def needles(kit, rng, tokens, keys=1, values=1, asked=1, kind="number", hay="text"):
    """`keys` names with `values` each; `asked` of the names are asked for."""

    def value():
        if kind == "uuid":
            return str(uuid.UUID(int=rng.getrandbits(128), version=4))
        return str(rng.randrange(1_000_000, 10_000_000))

    def name():
        return "-".join(rng.sample(kit.corpus.words, 2))

    facts = {}
    while len(facts) < keys:
        facts[name()] = [value() for _ in range(values)]
    names = rng.sample(sorted(facts), asked)
    pairs = [(key, one) for key, found in facts.items() for one in found]
    rng.shuffle(pairs)
    pieces = [kit.ids("\n" + NEEDLE.format(kind, *pair) + "\n") for pair in pairs]

    def body(room):
        left = room - sum(map(len, pieces))
        if hay == "lines":
            filler, is_full = [], False
            while not is_full:
                lines = [NEEDLE.format(kind, name(), value()) + "\n" for _ in range(256)]
                for line in kit.ids(lines):
                    is_full = len(filler) + len(line) > left
                    if is_full:
                        break
                    filler += line
        else:
            draw = kit.corpus.noise_of if hay == "noise" else None
            filler = draw(max(left, 0)) if draw else kit.corpus.window(rng, max(left, 0))
        return kit.corpus.spread(rng, filler, pieces)

    many = asked * values > 1
    things = kind + "s" if many else kind
    question = "What are all the" if many else "What is the"
    about = f"special magic {things} for {listed(names)} mentioned in the provided text"
    tail = f"\n{question} {about}?"
    prefix = f" The {about} "
    ids, count = kit.assemble(
        tokens, HEAD.format(kind), tail, prefix + ("are" if many else "is"), body
    )
    return ids, count, [one for key in names for one in facts[key]]


def chain_of(rng, hops=4):
    """(names, value, lines) of VAR A = 12345, VAR B = VAR A, .."""
    names, value = set(), str(rng.randrange(10_000, 100_000))
    while len(names) <= hops:
        names.add("".join(rng.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(5)))
    names = sorted(names)
    rng.shuffle(names)
    lines = [f"VAR {names[0]} = {value}"]
    lines += [f"VAR {b} = VAR {a}" for a, b in zip(names, names[1:])]
    return names, value, lines


VARIABLES = (
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n",
    "\nQuestion: Find all variables that are assigned the value {} in the text above.",
    " Answer: According to the chain(s) of variable assignment in the text above, 5 variables are "
    "assigned the value {}, they are: ",
)


def variables(kit, rng, tokens):
    head, tail, prefix = VARIABLES

    def scattered(lines, room):
        pieces = [kit.ids("\n" + line + "\n") for line in lines]
        left = room - sum(map(len, pieces))
        return kit.corpus.spread(rng, kit.corpus.noise_of(max(left, 0)), pieces)

    shown, value, lines = chain_of(rng)
    example = head + kit.tokenizer.decode(scattered(lines, 250)) + tail.format(value)
    example += prefix.format(value) + " ".join(shown) + "\n\n"
    names, value, lines = chain_of(rng)
    ids, count = kit.assemble(
        tokens,
        example + head,
        tail.format(value),
        prefix.format(value).rstrip(),
        lambda room: scattered(lines, room),
    )
    return ids, count, names


COMMON = (
    "Below is a numbered list of words. In these words, some appear more often than others. "
    "Memorize the ones that appear most often.\n",
    "\nQuestion: What are the 10 most common words in the above list?",
    " Answer: The top 10 words that appear most often in the list are:",
)


def common_words(kit, rng, tokens):
    head, tail, prefix = COMMON
    often, seldom = (30, 3) if tokens >= 4096 else (10, 1)
    repeats = -(-tokens // 32768)  # the manual has no more words than that
    often, seldom = often * repeats, seldom * repeats
    chosen = rng.sample(kit.corpus.words, len(kit.corpus.words))
    common, others = chosen[:10], chosen[20:]

    def numbered(words):
        return " ".join(f"{i + 1}. {word}" for i, word in enumerate(words))

    def words(count):
        found = common * often + [w for w in others[:count] for _ in range(seldom)]
        random.Random(count).shuffle(found)
        return numbered(found)

    def body(room):
        # Tokens grow almost evenly with words: a few guesses, of which the longest that fits.
        best, low, high = [], 0, min(len(others), room // (2 * seldom))
        guess = high
        while low <= high:
            found = kit.ids(words(guess))
            if len(found) <= room:
                best, low = found, guess + 1
            else:
                high = guess - 1
            guess = int(guess * room / max(1, len(found)))
            guess = min(max(guess, low), high)
        return best

    shown = chosen[10:20] * 4 + others[-20:]
    rng.shuffle(shown)
    example = head + numbered(shown) + tail + prefix + " " + numbered(chosen[10:20]) + "\n\n"
    ids, count = kit.assemble(tokens, example + head, tail, prefix, body)
    return ids, count, common


ANSWER = (
    "Answer the question based on the given documents. Only give me the answer and do not output "
    "any other words.\n\n"
)


def questions(kit, rng, tokens, hops=1):
    """A question about one of many paragraphs, or about the teacher of the one who is named."""
    everyone = people.crowd(rng, min(len(people.FIRST) * len(people.LAST), tokens // 40 + 2))
    asked = rng.randrange(2)
    question, reference = everyone[asked].question(rng)
    if hops == 2:
        teacher = everyone[asked + 1]
        question = f"In which city was the teacher of {everyone[asked].name} born?"
        reference = teacher.city

    def body(room):
        titles, texts = [], []
        numbered = kit.ids([f"Document {i + 1}:\n" for i in range(len(everyone))])
        for pair in zip(numbered, kit.ids([person.text() + "\n\n" for person in everyone])):
            room -= sum(map(len, pair))
            if room < 0:
                break
            titles.append(pair[0])
            texts.append(pair[1])
        rng.shuffle(texts)
        return [t for title, text in zip(titles, texts) for t in title + text]

    head = ANSWER + "The following are given documents.\n\n"
    tail = ANSWER + f"Question: {question}"
    ids, count = kit.assemble(tokens, head, tail, " Answer:", body)
    return ids, count, [reference]


TASKS = {  # name -> (function, its arguments, new tokens)
    "single_noise": (needles, dict(hay="noise"), 32),
    "single": (needles, {}, 32),
    "single_uuid": (needles, dict(kind="uuid"), 48),
    "multikey": (needles, dict(keys=4), 32),
    "multikey_lines": (needles, dict(hay="lines"), 32),
    "multivalue": (needles, dict(values=4), 96),
    "multiquery": (needles, dict(keys=4, asked=4), 96),
    "variables": (variables, {}, 48),
    "common_words": (common_words, {}, 96),
    "qa": (questions, {}, 32),
    "qa_two_hop": (questions, dict(hops=2), 32),
}


def make(kit, task, number, tokens, seed):
    """The prompt `number` of a task; the same for the same model, seed and length."""
    function, arguments, new_tokens = TASKS[task]
    rng = random.Random(f"{seed} {task} {tokens} {number}")
    ids, asked, references = function(kit, rng, tokens, **arguments)
    is_any = function is questions
    return Prompt(task, number, ids, asked, references, new_tokens, is_any)
