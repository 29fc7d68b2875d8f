"""Greedy answers of a batch of prompts, and RULER's scores of them."""

import time

import torch

CHECK = 8  # tokens between looks at what has been said


def score(said, references, is_any):
    """RULER's string match: the share of the references that occur in what was said, or whether
    any does."""
    found = [reference.lower() in said.lower() for reference in references]
    return float(any(found)) if is_any else sum(found) / len(found)


def cut(tokens, limit, ends):
    """The first `limit` tokens up to the end of the text."""
    kept = tokens[:limit]
    for i, token in enumerate(kept):
        if token in ends:
            return kept[:i]
    return kept


class Answers:
    def __init__(self, world, tokenizer):
        self.world, self.tokenizer = world, tokenizer
        ends = world.model.generation_config.eos_token_id
        ends = ends if isinstance(ends, list) else [ends]
        self.ends = {*ends, tokenizer.eos_token_id} - {None}

    def judge(self, prompts, rows):
        """(scores, texts, whether nothing more can change a score) of the tokens so far."""
        scores, texts, is_done = [], [], True
        for prompt, tokens in zip(prompts, rows):
            kept = cut(tokens, prompt.new_tokens, self.ends)
            said = self.tokenizer.decode(kept, skip_special_tokens=True)
            scores.append(score(said, prompt.references, prompt.is_any))
            texts.append(said)
            is_done &= scores[-1] == 1 or len(kept) < len(tokens) or len(kept) == prompt.new_tokens
        return scores, texts, is_done

    def decode(self, prompts, cache, first):
        """(scores, texts) of greedy decoding behind the token `first` [b, 1]. It stops where no
        token can change a score any more."""
        tokens = [first]
        for step in range(1, max(prompt.new_tokens for prompt in prompts)):
            if step % CHECK == 0:
                scores, texts, is_done = self.judge(prompts, torch.cat(tokens, 1).tolist())
                if is_done:
                    return scores, texts
            logits = self.world.forward(tokens[-1], cache, logits_to_keep=1)
            tokens.append(logits[:, -1:].argmax(-1))
        return self.judge(prompts, torch.cat(tokens, 1).tolist())[:2]

    def ask(self, prompts, asked_by_index):
        """({method: (scores, texts)}, {what: seconds}) of prompts of equally many tokens. With
        asked_by_index the questions too go through each method's cache, in one forward."""
        length, seconds = len(prompts[0].ids), {}
        split = length - max(prompt.asked for prompt in prompts) if asked_by_index else length
        room = length + max(prompt.new_tokens for prompt in prompts)
        began = time.perf_counter()
        caches, first = self.world.prefill([prompt.ids[:split] for prompt in prompts], room)
        first = first.cpu().to(first.device)  # waits
        seconds["prefill"] = time.perf_counter() - began
        found = {}
        rest = torch.tensor([prompt.ids[split:] for prompt in prompts], device=first.device)
        for method, cache in caches.items():
            began, start = time.perf_counter(), first
            if asked_by_index:
                start = self.world.forward(rest, cache, logits_to_keep=1)[:, -1:].argmax(-1)
            found[method] = self.decode(prompts, cache, start)
            seconds[method] = time.perf_counter() - began
        return found, seconds
