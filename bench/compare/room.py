"""What the sections of one run share: the library, how turns are made cold, what was left out."""

import gc
import time

import torch
from tqdm import tqdm

from bench.compare import ours, torch_attention
from bench.compare.measure import last_level_cache, summary, take_turns
from bench.compare.options import FAISS, TORCH

TOLERANCE = 1e-2  # of a step that fetches every key; f32 sums of 1920 terms need 1e-4
LARGEST_SWEEP = 1 << 30


class DisagreementError(Exception):
    """Ours computes something else than it should."""


class Room:
    def __init__(self, library, options):
        self.library, self.options = library, options
        self.left_out = []
        torch.set_num_threads(options.threads)
        size = min(2 * last_level_cache(), LARGEST_SWEEP)
        self.sweep = torch.ones(size // 8, dtype=torch.int64)

    def versions(self):
        found = {"pariskv": self.library.version, "torch": torch.__version__}
        try:
            import faiss

            found["faiss"] = faiss.__version__
        except ImportError:
            pass
        return found

    def step_error(self):
        error = ours.step_error(self.library, torch_attention.reference)
        if not error <= TOLERANCE:
            raise DisagreementError(
                f"a step that fetches every key is off by {error:.3g} of full attention's largest "
                f"number, accepted: {TOLERANCE}"
            )
        return error

    def leave_out(self, method, n, reason):
        self.left_out.append({"method": method, "n": n, "reason": reason})

    def wants(self, *names):
        return any(name in self.options.methods for name in names)

    def all_sections(self):
        """(title, results) of each section that has a method that is wanted."""
        for n, share in zip(self.options.n, self.options.candidates):
            yield from self._sections(n, share)

    def _sections(self, n, share):
        from bench.compare.search_section import SearchSection
        from bench.compare.step_section import StepSection

        if self.wants("step", *TORCH):
            yield StepSection(self, n, share).results()
            gc.collect()
        if not self.wants("retrieve", "vote+select", *FAISS):
            return
        if n > self.options.search_limit:
            self.leave_out("search", n, f"above --search-limit {self.options.search_limit}")
            return
        yield SearchSection(self, n, share).results()
        gc.collect()

    def make_cold(self):
        self.sweep.sum()
        time.sleep(self.options.pause)

    def measure(self, title, methods):
        repeat = self.options.repeat
        with tqdm(total=len(methods) * (repeat + 1), desc=title, leave=False, disable=None) as bar:
            take_turns(methods, repeat, before=self.make_cold, after=bar.update)
        return title, [{**method.record, **summary(method.times)} for method in methods]
