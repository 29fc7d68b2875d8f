"""The algorithm of docs/algorithm.md in numpy, written from that text alone.

Slow and plain on purpose: nothing here is shared with the library, so where both agree both were
derived from the text. Exact stages compute in float32 with one rounding per written operation;
bounded stages compute in float64.
"""
