"""Sign vectors from Philox4x32-10 (docs/algorithm.md, 2.1)."""

import numpy as np

KEY_FIRST, KEY_SECOND, VALUE_FIRST, VALUE_SECOND = 1, 2, 3, 4
MASK = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)


def philox(counter, key):
    """Ten rounds on a counter of four and a key of two 32-bit words."""
    c0, c1, c2, c3 = (np.uint64(word) for word in counter)
    k0, k1 = (np.uint64(word) for word in key)
    for step in range(10):
        if step:
            k0 = (k0 + np.uint64(0x9E3779B9)) & MASK
            k1 = (k1 + np.uint64(0xBB67AE85)) & MASK
        first = np.uint64(0xD2511F53) * c0
        second = np.uint64(0xCD9E8D57) * c2
        hi0, lo0, hi1, lo1 = first >> HALF, first & MASK, second >> HALF, second & MASK
        c0, c1, c2, c3 = hi1 ^ c1 ^ k0, lo1, hi0 ^ c3 ^ k1, lo0
    return [int(word) for word in (c0, c1, c2, c3)]


def sign_vector(seed, stream, count):
    """`count` elements of +1 or -1, float32."""
    key = (seed & 0xFFFFFFFF, seed >> 32)
    signs = np.empty(count, np.float32)
    for block in range((count + 127) // 128):
        words = philox((block, stream, 0, 0), key)
        for j in range(block * 128, min(count, block * 128 + 128)):
            bit = (words[(j // 32) % 4] >> (j % 32)) & 1
            signs[j] = -1 if bit else 1
    return signs
