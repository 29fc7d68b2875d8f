"""What `python -m bench.quality` consists of: rules that choose what a decoding step attends to.

trace reads traces, base has what rules share, registry their names and settings, harness judges
them, stats and report make figures and tables. A file per family: dense, quest, eviction,
magicpig, pqcache, graph, rabitq, shadowkv, kivi, library (ours). All of them need numpy; pqcache,
graph and rabitq FAISS; library the package pariskv. Each rule is written from its paper's
statement, cited in its file."""
