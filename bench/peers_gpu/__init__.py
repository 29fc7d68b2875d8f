"""Selection rules as batched torch operations, timed on a GPU: python -m bench.peers_gpu."""
