"""Judging shared among processes: a job is a trace, a k, and settings. Settings that take long are
jobs of their own and begin first; the others of a trace and k share one, and with it the exact
answers. Every process has one thread."""

import concurrent.futures
import functools
import multiprocessing
import os
import time
from pathlib import Path
from typing import NamedTuple

from bench.rules import harness, trace

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
SLOW = ("hnsw", "kivi", "magicpig", "pqcache", "shadowkv")


class Job(NamedTuple):
    path: str
    tokens: int
    setup: harness.Setup
    settings: list  # registry.Setting
    first: int = 0  # where the first one's result stands among all

    @property
    def label(self):
        labels = ", ".join(setting.label for setting in self.settings)
        return f"{Path(self.path).stem}, k = {self.setup.k}: {labels}"

    @property
    def weight(self):
        """A guess of how long it takes: PQCache's k-means with 8 bits above all."""
        factor = len(self.settings)
        if self.settings[0].method == "pqcache":
            factor += self.settings[0].params.get("m", 0)
        return factor * self.tokens


def split(whole):
    """Jobs of one trace and k each as smaller ones, the longest first. What is not slow stays
    together, as far as it stands side by side."""
    found, first = [], 0
    for job in whole:
        for place, setting in enumerate(job.settings, first):
            is_slow = setting.method in SLOW
            if place > first and not is_slow and found[-1].settings[0].method not in SLOW:
                found[-1].settings.append(setting)
            else:
                found.append(job._replace(settings=[setting], first=place))
        first += len(job.settings)
    return sorted(found, key=lambda job: -job.weight)


def placed(job, outcome):
    """[(place, result)] of what `work` gave."""
    results, left_out = outcome
    missing = {entry["setting"] for entry in left_out}
    places = [
        job.first + i for i, setting in enumerate(job.settings) if setting.label not in missing
    ]
    return list(zip(places, results, strict=True))


@functools.lru_cache(maxsize=2)
def loaded(path):
    return trace.load(path)


def begin_worker():
    try:
        import faiss

        faiss.omp_set_num_threads(1)
    except ImportError:
        pass
    try:
        import pariskv

        pariskv.device("cpu").set("threads", 1)
    except (ImportError, OSError, RuntimeError):
        pass  # a rule that needs it says so


def work(job):
    """(results, left out). A setting that fails does not take the others with it."""
    try:
        return harness.evaluate(loaded(job.path), job.settings, job.setup)
    except Exception as error:
        if len(job.settings) == 1:
            return without(job, f"{type(error).__name__}: {error}")
        alone = [work(job._replace(settings=[setting])) for setting in job.settings]
        return tuple(sum(parts, []) for parts in zip(*alone))


def run(jobs, count, ends, report):
    """Judges jobs in `count` processes; begins none after `ends` (monotonic). As they end, `report`
    gets (job, (results, left out)); settings of jobs that were not begun are left out."""
    with threads_of_one():
        pool = concurrent.futures.ProcessPoolExecutor(
            count, multiprocessing.get_context("spawn"), begin_worker
        )
        waiting, running = list(jobs), {}
        with pool:
            while waiting or running:
                while waiting and len(running) < count:
                    job = waiting.pop(0)
                    if time.monotonic() > ends:
                        report(job, without(job, "no time left"))
                        continue
                    running[pool.submit(work, job)] = job
                if not running:
                    break
                done, _ = concurrent.futures.wait(
                    running, return_when=concurrent.futures.FIRST_COMPLETED
                )
                for future in done:
                    job = running.pop(future)
                    report(job, future.result())


def without(job, reason):
    return [], [
        {"trace": Path(job.path).stem, "setting": setting.label, "k": job.setup.k, "reason": reason}
        for setting in job.settings
    ]


class threads_of_one:  # noqa: N801
    """Processes that begin meanwhile compute with one thread each."""

    def __enter__(self):
        self.before = {name: os.environ.get(name) for name in THREADS}
        os.environ.update(dict.fromkeys(THREADS, "1"))

    def __exit__(self, *_):
        for name, value in self.before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
