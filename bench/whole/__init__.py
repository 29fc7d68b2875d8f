"""Parts of bench.whole_model: the model, the kinds of attention, what fits, how steps are timed."""
