"""Arrays on GPUs, where DLPack's C exchange API does not say enough: streams, __cuda_array_interface__, new arrays."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable, Iterator
from typing import Any

CPU, CUDA = 1, 2  # types of devices, as DLPack numbers them
DEFAULT_STREAM = 0
LEGACY_DEFAULT = 1  # the same stream, as DLPack and __cuda_array_interface__ have it

TYPES = {
    "b1": "bool",
    "f2": "float16",
    "f4": "float32",
    "f8": "float64",
    "i1": "int8",
    "i4": "int32",
    "i8": "int64",
}
POINTER_DEVICE = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL


def handle_of(stream: Any) -> int:
    """The cudaStream_t of a stream: an int, or an object of PyTorch, CuPy or whatever has __cuda_stream__."""
    if hasattr(stream, "__cuda_stream__"):
        handle: Any = stream.__cuda_stream__()[1]
    else:
        handle = getattr(stream, "cuda_stream", None)  # PyTorch's
        handle = getattr(stream, "ptr", stream) if handle is None else handle  # CuPy's
    if isinstance(handle, bool) or not hasattr(handle, "__index__") or int(handle) < 0:
        raise TypeError(f"stream is {stream!r}; it takes a stream of CUDA, or its handle as an int")
    return _plain(int(handle))


def dlpack_device(device: Any) -> tuple[int, int]:
    """(type, index) of "cpu", "cuda", "cuda:1" or an object that is written so, as PyTorch's."""
    kind, _, index = str(device).partition(":")
    if kind == "cpu" and index in ("", "0"):
        return CPU, 0
    if kind == "cuda" and (not index or index.isdecimal()):
        return CUDA, int(index or 0)
    raise ValueError(f"device is {device!r}; there are 'cpu', and 'cuda' or 'cuda:1' and the like")


def _plain(handle: int) -> int:
    return DEFAULT_STREAM if handle == LEGACY_DEFAULT else handle


def _library(array: Any, name: str) -> Any:
    """The library of that name, if the array is one of its own."""
    packages = {base.__module__.partition(".")[0] for base in type(array).__mro__}
    return sys.modules.get(name) if name in packages else None


def stream_of(array: Any, device: int) -> int:
    """The stream that the array's library works on at present; CUDA's default one for a library that does not say."""
    if (torch := _library(array, "torch")) is not None:
        return int(torch.cuda.current_stream(device).cuda_stream)
    if (cupy := _library(array, "cupy")) is not None:
        return _plain(int(cupy.cuda.get_current_stream(device).ptr))
    interface = getattr(array, "__cuda_array_interface__", None) or {}
    return _plain(interface.get("stream") or DEFAULT_STREAM)


def _device_of(address: int) -> int:
    """The GPU that memory is of; 0 where the driver does not say, and the library then refuses the memory itself."""
    device = ctypes.c_int(0)
    with contextlib.suppress(OSError, AttributeError):
        driver = ctypes.CDLL("libcuda.so.1")
        driver.cuPointerGetAttribute(ctypes.byref(device), POINTER_DEVICE, ctypes.c_uint64(address))
    return max(device.value, 0)


def view(array: Any, name: str) -> tuple[tuple[Any, ...], int | None]:
    """What __cuda_array_interface__ says: a view, as tilewise._core takes it, and the stream to be in order with."""
    interface = array.__cuda_array_interface__
    if interface.get("mask") is not None:
        raise TypeError(f"{name} is a masked array; give its data, and what is live as mask=")
    address, _ = interface["data"]
    code, shape, strides = interface["typestr"], tuple(interface["shape"]), interface.get("strides")
    dtype = TYPES.get(code[1:], code) if code[0] in "<|" else code
    if strides is not None:
        size = int(code[2:])
        if any(stride % size for stride in strides):
            raise ValueError(f"{name} has strides of {strides} bytes, no multiples of the {size} of an element")
        strides = tuple(stride // size for stride in strides)
    stream = interface.get("stream")
    device = _device_of(address) if address else 0
    return (address or 0, dtype, shape, strides, (CUDA, device)), None if stream is None else _plain(stream)


@contextlib.contextmanager
def _current(array: Any, device: int) -> Iterator[None]:
    """Within it the GPU is the one that the array's library works on."""
    if (torch := _library(array, "torch")) is not None:
        with torch.cuda.device(device):
            yield
    elif (cupy := _library(array, "cupy")) is not None:
        with cupy.cuda.Device(device):
            yield
    elif (numba := _library(array, "numba")) is not None:
        with numba.cuda.gpus[device]:
            yield
    else:
        yield


def producer(array: Any, device: int) -> Callable[..., Any]:
    """The array's __dlpack__, as it must be called: PyTorch's refuses where another GPU is the current one."""

    def dlpack(**keywords: Any) -> Any:
        with _current(array, device):
            return array.__dlpack__(**keywords)

    return dlpack


def empty(like: Any, shape: tuple[int, ...], dtype: str, device: int, stream: int, name: str) -> Any:
    """A new array of the library of `like`, whose memory comes and goes in the order of the stream."""
    if (torch := _library(like, "torch")) is not None:
        is_current = torch.cuda.current_stream(device).cuda_stream == stream
        with torch.cuda.stream(None if is_current else torch.cuda.ExternalStream(stream, device)):
            return like.new_empty(shape, dtype=getattr(torch, dtype))
    if (cupy := _library(like, "cupy")) is not None:
        with _current(like, device), cupy.cuda.ExternalStream(stream, device):
            return cupy.empty(shape, dtype)
    if (numba := _library(like, "numba")) is not None:
        with _current(like, device):
            return numba.cuda.device_array(shape, dtype)
    raise TypeError(f"{name} cannot be made anew for arrays of type {type(like).__name__} on a GPU; give one")
