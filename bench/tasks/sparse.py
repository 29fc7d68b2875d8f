"""pariskv's cache, used over and over for batches of different sizes."""

import pariskv.hf


class SparseCache(pariskv.hf.Cache):
    def begin(self, batch):
        """Empty, for `batch` rows; its store has been made for as many or more."""
        self.reset()
        if self._sequences is None:
            return
        store, slots = self.store, self.slots
        while len(slots) > batch:
            store.remove(slots.pop())
        while len(slots) < batch:
            slots.append(store.add())
