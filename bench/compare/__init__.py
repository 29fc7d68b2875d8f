"""What `python -m bench.peers` consists of.

options, report, measure and capi need the standard library alone; the others torch, and
faiss_search FAISS."""
