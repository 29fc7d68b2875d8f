"""Answers of a batch of prompts, and RULER's scores of them."""

import time

import torch

from .judges import judge


def greedy(logits):
    """The likeliest tokens [b, 1] of logits [b, vocabulary]."""
    return logits.argmax(-1, keepdim=True)


def sampler(temperature, top_p, generator):
    """Draws tokens from the smallest set of the likeliest whose share is top_p."""

    def pick(logits):
        shares, order = (logits.float() / temperature).softmax(-1).sort(-1, descending=True)
        shares[shares.cumsum(-1) - shares >= top_p] = 0
        return order.gather(1, torch.multinomial(shares, 1, generator=generator))

    return pick


def cut(tokens, limit, ends):
    """The first `limit` tokens up to the end of the text."""
    kept = tokens[:limit]
    for i, token in enumerate(kept):
        if token in ends:
            return kept[:i]
    return kept


def ends_of(model, tokenizer):
    """Tokens that end an answer."""
    ends = model.generation_config.eos_token_id
    return {*(ends if isinstance(ends, list) else [ends]), tokenizer.eos_token_id} - {None}


class Answers:
    """Scores of prompts (prompts.Prompt) with every method."""

    def __init__(self, world, tokenizer, ends):
        self.world, self.tokenizer, self.ends = world, tokenizer, ends

    def judged(self, prompts, rows):
        """(scores, texts, whether nothing more can change a score) of the tokens so far."""
        scores, texts, is_done = [], [], True
        for prompt, tokens in zip(prompts, rows):
            kept = cut(tokens, prompt.new_tokens, self.ends)
            said = self.tokenizer.decode(kept, skip_special_tokens=True)
            scores.append(judge("any" if prompt.is_any else "share", said, prompt.references))
            texts.append(said)
            is_done &= scores[-1] == 1 or len(kept) < len(tokens) or len(kept) == prompt.new_tokens
        return scores, texts, is_done

    def ask(self, prompts, asked_by_index):
        """({method: (scores, texts)}, {what: seconds}) of prompts of equally many tokens. With
        asked_by_index the questions too go through each method's cache, in one forward."""
        length, seconds = len(prompts[0].ids), {}
        split = length - max(prompt.asked for prompt in prompts) if asked_by_index else length
        limit = max(prompt.new_tokens for prompt in prompts)
        began = time.perf_counter()
        caches, logits = self.world.prefill(
            [prompt.ids[:split] for prompt in prompts], length + limit
        )
        logits = logits.cpu().to(logits.device)  # waits
        seconds["prefill"] = time.perf_counter() - began
        found, rows = {}, [prompt.ids for prompt in prompts]
        rest = torch.tensor([ids[split:] for ids in rows], device=logits.device)
        for method, cache in caches.items():
            began, start = time.perf_counter(), logits
            if asked_by_index:
                start = self.world.forward(rest, cache, logits_to_keep=1)[:, -1]
            tokens = self.world.decode(
                cache, start, rows, limit, greedy, lambda some: self.judged(prompts, some)[2]
            )
            found[method] = self.judged(prompts, tokens)[:2]
            seconds[method] = time.perf_counter() - began
        return found, seconds
