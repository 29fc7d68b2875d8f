"""What ranks of torch.distributed tell each other."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from ._merge import merge as _merge_on_cpu


def gathered(own: Any, group: Any = None) -> Any:
    """[ranks, ..] of every rank's tensor."""
    own = own.contiguous()
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, own, group=group)
    return torch.stack(parts)


def merge(output: Any, lse: Any, group: Any = None) -> tuple[Any, Any]:
    """Joins what each rank found over its own tokens: output [n, hq, dv] torch tensor, lse [n, hq]
    float32 (-inf: nothing here). One exchange of n * hq * (dv + 1) float32 per rank. Returns
    (output, lse), the same bits on every rank."""
    parts = gathered(torch.cat([output.float(), lse[..., None]], -1), group)
    outputs = [part[..., :-1] for part in parts]
    lses = [part[..., -1].contiguous() for part in parts]
    if output.device.type == "cpu":
        joined, total = _merge_on_cpu(outputs, lses)
    else:
        logits = torch.stack(lses)
        total = logits.logsumexp(0)
        weights = (logits - total).exp().nan_to_num(0.0)
        joined = (torch.stack(outputs) * weights[..., None]).sum(0)
    return joined.to(output.dtype), total
