"""fixed_keys.py LIBRARY BACKEND: digests of the records of 1,000 fixed keys, as JSON.
fixed_keys.py --oracle: the same from tests/oracle, which shares nothing with the library; this is
what fixed_keys.json holds."""

import hashlib
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path.append(str(HERE.parent / "oracle"))

import numpy as np  # noqa: E402
from oracle import encode, model, signs  # noqa: E402
from reference import fixed_numbers  # noqa: E402

SEED, DIM, COUNT = 42, 128, 1000
CODECS = {"polar4": model.POLAR4, "scalar4": model.SCALAR4, "scalar5": model.SCALAR5}
FIRST = 3  # keys whose bytes are kept as they are


def codec_numbers():
    """Centre [d] and balance [d] that are not trivial."""
    center = fixed_numbers(2, DIM) * np.float32(0.125)
    return center, np.float32(0.5) + np.abs(fixed_numbers(3, DIM)) * np.float32(0.25)


def digest(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def summary(records, sign_vector):
    """Digests of all planes, and the first keys' bytes: these say more when they differ."""
    planes = {name: digest(plane) for name, plane in records.items()}
    first = {name: plane[:FIRST].tobytes().hex() for name, plane in records.items()}
    return {"planes": planes, "first": first, "signs": digest(sign_vector)}


def of_library(path, backend):
    from capi import Codec, Config, Index, Machine

    machine = Machine(path, backend)
    result = {}
    for name in CODECS:
        config = Config(machine, head_dim=DIM, seed=SEED, codec=name, v_source="none", tail="drop")
        center, balance = codec_numbers()
        codec = Codec.stored(machine, config, center[None], balance[None])
        index = Index(machine, codec, 1, COUNT)
        index.append(0, fixed_numbers(1, (1, COUNT, DIM)))
        result[name] = summary(index.records(), machine.sign_vector(SEED, 1, DIM))
    return result


def of_oracle():
    result = {}
    for name, codec in CODECS.items():
        geometry = model.Geometry(1, DIM, 0, v_source=model.NONE, codec=codec, seed=SEED)
        params = model.make_params(geometry, *codec_numbers())
        records = encode.encode(geometry, params, fixed_numbers(1, (COUNT, DIM)))
        result[name] = summary(records.planes(), signs.sign_vector(SEED, 1, DIM))
    return result


def main():
    result = of_oracle() if sys.argv[1:] == ["--oracle"] else of_library(*sys.argv[1:])
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
