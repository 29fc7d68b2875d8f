"""Benchmarks. C++: a program per stage and one for the whole step. Python: peers, gpu_peers,
hf_eval, quality."""
