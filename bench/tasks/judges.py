"""Whether an answer is right. Mathematics is compared as text after tidying, and as numbers: there
is no symbolic algebra, so that a right answer in another form counts as wrong, for all methods."""

import re
from fractions import Fraction


def last_boxed(text):
    """The content of the last \\boxed{..}, braces balanced; None without one."""
    at = text.rfind("\\boxed{")
    if at < 0:
        return None
    begin, depth = at + len("\\boxed{"), 1
    for i in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if depth == 0:
            return text[begin:i]
    return None


DROPPED = ("\\left", "\\right", "\\!", "\\,", "\\;", "\\ ", "\\%", "%", "\\$", "$", "^\\circ",
           "^{\\circ}", "\\displaystyle")  # fmt: skip


def tidy(answer):
    """A form that many ways of writing the same share."""
    text = answer.strip().rstrip(".").replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    for piece in DROPPED:
        text = text.replace(piece, "")
    text = re.sub(r"\\(?:text|mathrm|mbox)\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"\\frac(\d)(\d)", r"\\frac{\1}{\2}", text)
    text = re.sub(r"^\w+\s*=", "", text)
    return re.sub(r"\s+", "", text)


def number(text):
    """As a fraction; None for what is no plain number."""
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    text = re.sub(r"^(-?)\\frac\{(-?\d+)\}\{(\d+)\}$", r"\1\2/\3", text)
    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        return None


def is_same(found, wanted):
    found, wanted = tidy(found), tidy(wanted)
    numbers = number(found), number(wanted)
    return found == wanted or None not in numbers and numbers[0] == numbers[1]


def letter(text):
    """The choice that was made last: "The correct answer is (B)"; None without one."""
    found = re.findall(r"correct answer is:?\s*\**\(?([A-D])\b", text)
    return found[-1] if found else None


def judge(kind, said, references):
    """A score from 0 to 1."""
    if kind == "letter":
        return float(letter(said) == references[0])
    if kind == "math":
        found = last_boxed(said)
        return float(found is not None and is_same(found, references[0]))
    found = [reference.lower() in said.lower() for reference in references]
    return float(any(found)) if kind == "any" else sum(found) / len(found)
