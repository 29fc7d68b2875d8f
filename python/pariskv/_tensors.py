"""Views of numpy arrays, torch tensors and whatever speaks __array_interface__ or DLPack, without
copies, as the library's pkv_tensor; and outputs of the caller's kind."""

from __future__ import annotations

import ctypes as c
import functools
import sys
from typing import Any, NamedTuple

import numpy as np

from ._structs import Tensor

CPU, CUDA, CUDA_HOST, ROCM, ROCM_HOST = 1, 2, 3, 10, 11
F32, F16, BF16, U8, I32, I64 = 1, 3, 4, 5, 6, 7
DTYPES = {"float32": F32, "float16": F16, "bfloat16": BF16, "uint8": U8, "int32": I32, "int64": I64}
NAMES = {number: name for name, number in DTYPES.items()}
SIZES = {F32: 4, F16: 2, BF16: 2, U8: 1, I32: 4, I64: 8}
FLOATS = (F32, F16, BF16)


@functools.lru_cache(maxsize=1024)  # the steps of a model have the same ones, over and over
def _axes(extents: tuple[int, ...]) -> Any:
    return (c.c_int64 * len(extents))(*extents)


class View(NamedTuple):
    """A borrowed tensor. `owner` keeps the memory alive; strides count elements."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: int
    device_type: int
    device_id: int
    owner: Any
    is_readonly: bool

    def tensor(self) -> Tensor:
        result = Tensor(
            data=self.address or None,
            device_type=self.device_type,
            device_id=self.device_id,
            ndim=len(self.shape),
            dtype=self.dtype,
            shape=_axes(self.shape),
            strides=_axes(self.strides),
        )
        result.owner = self.owner
        return result


def dtype_number(dtype: Any) -> int:
    """Of "float32", "bfloat16", torch.float16, numpy.dtype, .. ."""
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or str(dtype)
    name = name.rsplit(".", 1)[-1]
    if name not in DTYPES:
        try:
            name = np.dtype(dtype).name
        except TypeError:
            pass
    if name not in DTYPES:
        raise TypeError(f"dtype {dtype!r} is not supported; choose from {', '.join(DTYPES)}")
    return DTYPES[name]


def is_torch(array: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def is_cupy(array: Any) -> bool:
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(array, cupy.ndarray)


def current_stream(ordinal: int, *arrays: Any) -> int:
    """The native stream of a GPU that the caller works on: cupy's where one of the arrays is
    cupy's, else torch's; 0 (the default stream) where neither is in use."""
    for array in arrays:
        if is_cupy(array):
            return int(sys.modules["cupy"].cuda.get_current_stream().ptr)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return int(torch.cuda.current_stream(ordinal).cuda_stream)
    return 0


_torch_dtype_number = functools.cache(dtype_number)


def _torch_view(array: Any) -> View:
    torch = sys.modules["torch"]
    kinds = {"cpu": CPU, "cuda": CUDA}
    kind = kinds.get(array.device.type)
    if kind is None:
        raise TypeError(f"a tensor on {array.device} is not supported; choose from {list(kinds)}")
    if kind == CPU and torch.cuda.is_initialized() and array.is_pinned():
        kind = ROCM_HOST if torch.version.hip else CUDA_HOST
    elif kind == CUDA and torch.version.hip:
        kind = ROCM
    return View(
        array.data_ptr(),
        tuple(array.shape),
        array.stride(),
        _torch_dtype_number(array.dtype),
        kind,
        array.device.index or 0,
        array,
        False,
    )


def _interface_view(array: Any) -> View:
    interface = array.__array_interface__
    name = getattr(getattr(array, "dtype", None), "name", None)
    dtype = dtype_number(name if name == "bfloat16" else np.dtype(interface["typestr"]))
    shape = tuple(interface["shape"])
    size = SIZES[dtype]
    strides = interface.get("strides")
    if strides is None:
        strides = np.cumprod((size, *shape[:0:-1]))[::-1].tolist() if shape else ()
    if any(stride % size for stride in strides) and 0 not in shape:
        raise ValueError(f"strides {tuple(strides)} are no multiples of the element's {size} bytes")
    if not np.dtype(interface["typestr"]).isnative:
        raise TypeError(f"byte order of {interface['typestr']} is not this machine's")
    data = interface.get("data")
    if data is None:
        raise TypeError("an __array_interface__ without data is not supported")
    elements = tuple(int(stride) // size for stride in strides)
    return View(int(data[0]), shape, elements, dtype, CPU, 0, array, bool(data[1]))


class _DLTensor(c.Structure):
    _fields_ = [
        ("data", c.c_void_p),
        ("device_type", c.c_int32),
        ("device_id", c.c_int32),
        ("ndim", c.c_int32),
        ("code", c.c_uint8),
        ("bits", c.c_uint8),
        ("lanes", c.c_uint16),
        ("shape", c.POINTER(c.c_int64)),
        ("strides", c.POINTER(c.c_int64)),
        ("byte_offset", c.c_uint64),
    ]


_DLPACK_DTYPES = {(2, 32): F32, (2, 16): F16, (4, 16): BF16, (1, 8): U8, (0, 32): I32, (0, 64): I64}


def dlpack_place(array: Any) -> tuple[int, int]:
    """(DLPack device type, device id) of an object that says so; else the CPU."""
    tell = getattr(array, "__dlpack_device__", None)
    kind, ordinal = tell() if tell is not None else (CPU, 0)
    return int(kind), int(ordinal)


def _dlpack_view(array: Any) -> View:
    # The capsule is not marked as used, so that it frees what it holds when it goes, with the view.
    kind, ordinal = dlpack_place(array)
    stream = {}
    if kind in (CUDA, ROCM):  # of CUDA's default stream DLPack speaks as 1
        stream = {"stream": current_stream(ordinal, array) or (1 if kind == CUDA else 0)}
    capsule = array.__dlpack__(**stream)
    pointer = c.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = c.c_void_p, [c.py_object, c.c_char_p]
    held = _DLTensor.from_address(pointer(capsule, b"dltensor"))
    dtype = _DLPACK_DTYPES.get((held.code, held.bits))
    if dtype is None or held.lanes != 1:
        raise TypeError(f"DLPack type code {held.code}, {held.bits} bits is not supported")
    shape = tuple(held.shape[: held.ndim])
    if held.strides:
        strides = tuple(held.strides[: held.ndim])
    else:
        strides = tuple(int(np.prod(shape[axis + 1 :])) for axis in range(held.ndim))
    address = (held.data or 0) + held.byte_offset
    owner = array, capsule
    return View(address, shape, strides, dtype, held.device_type, held.device_id, owner, False)


def view(array: Any, name: str, ndim: int, dtypes: tuple[int, ...] = FLOATS) -> View:
    """Borrows `array`; TypeError or ValueError name the argument, and what is accepted."""
    if is_torch(array):
        result = _torch_view(array)
    elif hasattr(array, "__array_interface__"):
        result = _interface_view(array)
    elif hasattr(array, "__dlpack__"):
        result = _dlpack_view(array)
    else:
        raise TypeError(
            f"{name} is a {type(array).__name__}; choose from numpy arrays, torch tensors, and "
            "objects with __array_interface__ or __dlpack__"
        )
    if result.dtype not in dtypes:
        accepted = ", ".join(NAMES[number] for number in dtypes)
        raise TypeError(f"{name} is of dtype {NAMES[result.dtype]}; choose from {accepted}")
    if len(result.shape) != ndim:
        raise ValueError(f"{name} has {len(result.shape)} axes {result.shape}, not {ndim}")
    return result


def output(array: Any, name: str, shape: tuple[int, ...], dtypes: tuple[int, ...]) -> View:
    """Borrows an array to write to."""
    result = view(array, name, len(shape), dtypes)
    if result.shape != shape:
        raise ValueError(f"{name} has shape {result.shape}, not {shape}")
    if result.is_readonly:
        raise ValueError(f"{name} is read-only")
    return result


def is_dense(found: View) -> bool:
    """Row-major, without gaps."""
    expected = 1
    for extent, stride in zip(reversed(found.shape), reversed(found.strides)):
        if extent > 1 and stride != expected:
            return 0 in found.shape
        expected *= extent
    return True


def flat(array: Any, name: str, shape: tuple[int, ...], dtype: int) -> View:
    """Borrows an array to write to, of which the library gets the address alone."""
    result = output(array, name, shape, (dtype,))
    if not is_dense(result):
        raise ValueError(f"{name} must be contiguous; its strides are {result.strides}")
    return result


def empty_like(array: Any, shape: tuple[int, ...], dtype: int) -> Any:
    """A new tensor where `array` lies, of its kind: torch for torch, cupy for cupy, else numpy."""
    if is_torch(array):
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=getattr(torch, NAMES[dtype]), device=array.device)
    if is_cupy(array) and dtype != BF16:
        return sys.modules["cupy"].empty(shape, NAMES[dtype])
    if dtype == BF16:
        bfloat16 = getattr(array, "dtype", None)
        if getattr(bfloat16, "name", "") != "bfloat16":
            raise TypeError("pass `out`: numpy and cupy themselves have no bfloat16")
        return np.empty(shape, bfloat16)
    return np.empty(shape, NAMES[dtype])


def address(array: Any) -> int | None:
    """Of a host array's first element; None stays None."""
    return None if array is None else int(array.__array_interface__["data"][0])


def host(values: Any, dtype: Any) -> Any:
    """A dense host array of a list, numpy array or tensor."""
    if is_torch(values):
        values = values.detach().cpu().numpy()
    return np.ascontiguousarray(values, dtype)
