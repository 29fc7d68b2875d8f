"""Sign vectors of the library against Philox in numpy; docs/algorithm.md, 2.1."""

import compare
import pytest
from oracle import signs

SEEDS = (0, 1, 42, 0xFFFFFFFF, 1 << 32, 0x299F31D0A4093822, (1 << 64) - 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_sign_vectors(library, seed):
    for stream in (1, 2, 3, 4):
        for count in (8, 24, 128, 136, 576):
            got = library.sign_vector(seed, stream, count)
            compare.assert_bits(got, signs.sign_vector(seed, stream, count), f"stream {stream}")
