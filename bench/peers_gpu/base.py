"""What the peers' torch paths share: zone, dense tokens, gathers, attention.

b sequences, h KV heads, G query heads of each, n keys of the zone, d the width. Rules, parameters
and what lies where are those of bench/rules; tests hold each peer against its rule there."""

import torch
from torch.nn.functional import scaled_dot_product_attention


class PinnedView:
    """Tells torch that pinned host memory is memory of the device, which it is to its kernels."""

    def __init__(self, tensor):
        self.keep = tensor
        self.__cuda_array_interface__ = {
            "data": (tensor.data_ptr(), False),
            "shape": tuple(tensor.shape),
            "strides": tuple(tensor.element_size() * stride for stride in tensor.stride()),
            "typestr": "<i2",
            "version": 3,
        }


def device_view(tensor, device):
    """A tensor in pinned memory as one that kernels of the device read where it lies."""
    if torch.device(device).type == "cpu":
        return tensor
    view = torch.as_tensor(PinnedView(tensor), device=device).view(tensor.dtype)
    if view.data_ptr() != tensor.data_ptr():
        raise RuntimeError("torch made a copy")
    return view


class Problem:
    """One layer: keys, values [b, h, n, d] of the zone; sink and newest tokens, which every peer
    attends to in full, [b, h, t, d]. The zone may be a view of pinned memory (`device_view`)."""

    def __init__(self, keys, values, dense_keys, dense_values, query_heads, scale=None):
        self.keys, self.values = keys, values
        self.dense = dense_keys, dense_values
        self.batch, self.heads, self.n, self.width = keys.shape
        self.group = query_heads // self.heads
        self.scale = self.width**-0.5 if scale is None else scale

    def grouped(self, query):
        """[b, hq, d] as [b, h, G, d]."""
        return query.view(self.batch, self.heads, self.group, self.width)


def mean_query(problem, query):
    """[b, h, 1, d]; the mean score of a group is its mean query's."""
    return problem.grouped(query).mean(2, keepdim=True)


def rows_at(source, index):
    """[b, h, r, d] rows of source [b, h, n, d] at index [b, h, r], wherever the source lies."""
    b, h, n, d = source.shape
    first = torch.arange(b * h, device=index.device).view(b, h, 1) * n
    step = source.stride(2)
    assert b == 1 or source.stride(0) == h * n * step
    assert h == 1 or source.stride(1) == n * step
    whole = source.as_strided((b * h * n, d), (step, 1))
    return whole.index_select(0, (index + first).flatten()).view(*index.shape, d)


def attend(problem, query, keys, values):
    """[b, hq, d]: softmax over the dense tokens and these rows [b, h, r, d]."""
    joined = (torch.cat(pair, 2) for pair in zip(problem.dense, (keys, values)))
    out = scaled_dot_product_attention(problem.grouped(query), *joined, scale=problem.scale)
    return out.reshape(query.shape)


class Peer:
    """One rule on one layer. `build` makes its summary of the zone, `step` answers a query group;
    a step has fixed shapes and asks nothing of the host, so that a graph can hold it."""

    NAME = ""
    ROWS = "device"  # where K and V of the zone lie

    def __init__(self, problem, k=100):
        self.problem, self.k = problem, min(k, problem.n)
        self.build()

    def build(self):
        pass

    def select(self, query):
        """[b, h, r] positions in the zone."""
        raise NotImplementedError

    def step(self, query):
        p, rows = self.problem, self.select(query)
        return attend(p, query, rows_at(p.keys, rows), rows_at(p.values, rows))

    def summary(self):
        """The tensors that a step reads beside rows, by attribute."""
        return {name: x for name, x in vars(self).items() if torch.is_tensor(x)}

    def copy(self):
        """The same with memory of its own for its summary, so that a device's cache does not hold
        it from the last layer's turn."""
        twin = object.__new__(type(self))
        twin.__dict__.update(vars(self))
        twin.__dict__.update({name: x.clone() for name, x in self.summary().items()})
        return twin

    def device_bytes(self):
        rows = 0
        if self.ROWS == "device":
            p = self.problem
            rows = 2 * p.keys.numel() * p.keys.element_size()
        return rows + sum(x.numel() * x.element_size() for x in self.summary().values())


class Pieces:
    """The zone's keys on the summary's device, so many at a time, in float32."""

    def __init__(self, problem, size=1 << 16):
        self.problem, self.size = problem, size

    def __iter__(self):
        for begin in range(0, self.problem.n, self.size):
            part = self.problem.keys[:, :, begin : begin + self.size]
            yield begin, part.to(self.problem.dense[0].device).float()
