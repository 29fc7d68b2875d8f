"""Where a step's time goes on a GPU: kernels by kind."""

import torch
from torch.profiler import ProfilerActivity, profile


def kind_of(kernel):
    text = kernel.lower()
    if "pkv" in text or "pariskv" in text:
        return "library"
    if any(word in text for word in ("flash", "fmha", "sdpa")):
        return "attention"
    is_product = any(word in text for word in ("gemm", "gemv", "cutlass", "splitk", "nvjet"))
    return "products" if is_product else "others"


def spent_by_kind(run, calls=4):
    """Milliseconds of a call in kernels of the library, in attention of torch's, in matrix
    products, in others, and in the dozen kernels with most of it."""
    try:
        with profile(activities=[ProfilerActivity.CUDA]) as found:
            for _ in range(calls):
                run()
            torch.cuda.synchronize()
    except RuntimeError as error:  # no profiler here: the times still count
        return {"trouble": str(error).splitlines()[0]}
    sums, names = {"library": 0.0, "products": 0.0, "attention": 0.0, "others": 0.0}, {}
    for event in found.key_averages():
        spent = event.self_device_time_total / calls / 1e3
        kind = kind_of(event.key)
        sums[kind] += spent
        names[f"{kind}: {event.key[:60]}"] = round(spent, 4)
    top = dict(sorted(names.items(), key=lambda item: -item[1])[:12])
    return {**{name: round(value, 4) for name, value in sums.items()}, "kernels": top}
