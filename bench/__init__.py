"""Benchmarks. C++: one program per stage and one for the whole step. Python: peers.py, gpu_peers.py."""
