"""Lists of settings by name, for `bench.quality --preset`."""

from typing import NamedTuple


class Part(NamedTuple):
    methods: str
    k: "list[int]"
    budget: "list[int]"


# Every rule with its paper's parameters, its knob and k from small to large: the tables of
# docs/quality.md. Each setting and k stands once.
PEERS = (
    Part(
        "full,exact,streaming,quest,snapkv,snapkv:grow=1,h2o,magicpig,magicpig:bits=9:tables=120,"
        "magicpig:bits=8:tables=75,pqcache,hnsw,shadowkv,shadowkv:rank=32,rabitq,kivi,kivi:bits=3,"
        "kivi:bits=4,kivi:bits=5,kivi:bits=6,kivi:bits=8,paper,paper:candidates=0.05,default,"
        "default:candidates=0.02,default:candidates=0.05,default:candidates=0.1,default:tail=drop,"
        "default:tail=mean,default:tail=sketch2,default:tail=sketch4:k=0",
        [100],
        [16, 64],
    ),
    Part(
        "exact,quest,snapkv,h2o,pqcache,shadowkv,rabitq,paper,default,default:candidates=0.05,"
        "default:tail=sketch2",
        [32, 200, 400],
        [],
    ),
    Part(
        "exact,quest,snapkv,h2o,pqcache,shadowkv,rabitq,default:candidates=0.05",
        [800, 1600, 3200],
        [],
    ),
    Part(
        "default:candidates=0.01:tail_samples=64:k=16,"
        "default:candidates=0.01:tail_samples=128:k=16,"
        "default:candidates=0.01:tail=sketch2:tail_samples=64:k=0,"
        "default:candidates=0.01:tail_samples=64,default:candidates=0.1:tail=sketch4,"
        "default:candidates=0.25:tail=sketch4,default:candidates=0.5:tail=sketch4,"
        "default:candidates=1:tail=sketch4,default:candidates=1:tail=sketch4:codec=scalar5,"
        "default:candidates=1:tail=sketch4:k=0",
        [100],
        [],
    ),
    Part(
        "default:candidates=0.25:tail=sketch4,default:candidates=0.5:tail=sketch4,"
        "default:candidates=1:tail=sketch4:codec=scalar5",
        [400, 1600, 3200],
        [],
    ),
)
PRESETS = {"peers": PEERS}
