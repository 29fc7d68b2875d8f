"""ctypes mirrors of the structs of pariskv.h: the package's own."""

# It knows where the package is.
import structs  # noqa: F401
from pariskv._structs import Attention, Dense, Hits, IndexStats, PlanDesc, Rows

__all__ = ["Attention", "Dense", "Hits", "IndexStats", "PlanDesc", "Rows"]
