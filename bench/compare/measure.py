"""Timing of methods that take turns, so that noise of the machine hits all of them alike."""

import gc
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Optional

PILOTS = 3


@dataclass
class Method:
    """`run(turn)` is what is timed; `record` is what the results say about it. `pilot()` does a
    little of the same, untimed, so that threads are awake: a model's layers follow each other."""

    record: dict
    run: Callable[[int], object]
    pilot: Optional[Callable[[], object]] = None
    times: list = field(default_factory=list)  # in us

    @property
    def name(self):
        return self.record["method"]


def take_turns(
    methods, repeat, before=lambda: None, after=lambda: None, clock=time.perf_counter_ns
):
    """Times each method `repeat` times, round by round, after one untimed round. `before` precedes
    every turn: it makes the data cold."""
    collects = gc.isenabled()
    gc.disable()
    try:
        for turn in range(-1, repeat):
            for method in methods:
                before()
                for _ in range(PILOTS if method.pilot else 0):
                    method.pilot()
                begin = clock()
                method.run(turn + 1)
                microseconds = (clock() - begin) / 1000
                if turn >= 0:
                    method.times.append(microseconds)
                after()
            gc.collect()
    finally:
        if collects:
            gc.enable()


def summary(times):
    """min_us, median_us and max_us."""
    return {
        "min_us": round(min(times), 3),
        "median_us": round(statistics.median(times), 3),
        "max_us": round(max(times), 3),
    }


def last_level_cache(folder="/sys/devices/system/cpu/cpu0/cache"):
    """Bytes of the largest cache, 32 MiB where the system does not say."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    sizes = []
    for file in Path(folder).glob("index*/size"):
        text = file.read_text().strip()
        sizes.append(int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text))
    return max(sizes, default=32 << 20)
