"""Arrays of other libraries, by DLPack: one made here, which needs no framework."""

from __future__ import annotations

import ctypes
import gc
import weakref
from typing import Any

import numpy as np
import pytest
import tilewise
from oracle import Float32, random
from tilewise import _core

Inputs = tuple[Float32, Float32, Float32]


class Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("index", ctypes.c_int32)]


class DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", Device),
        ("rank", ctypes.c_int32),
        ("dtype", DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Managed(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Producer:
    """A float32 array that only speaks DLPack 0, as old libraries do, and counts the memory that came back."""

    def __init__(
        self,
        array: Float32,
        device: tuple[int, int] = (1, 0),
        bits: int = 32,
        rank: int | None = None,
        has_shape: bool = True,
    ) -> None:
        self.array, self.device, self.bits, self.rank, self.has_shape = array, device, bits, rank, has_shape
        self.lent = self.returned = 0
        self.streams: list[int | None] = []
        self.keep: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, stream: int | None = None) -> Any:
        self.streams.append(stream)
        rank = self.array.ndim if self.rank is None else self.rank
        shape = (ctypes.c_int64 * 4)(*self.array.shape)
        strides = (ctypes.c_int64 * 4)(*(stride // self.array.itemsize for stride in self.array.strides))
        row_major = self.array.flags.c_contiguous
        # The offset is part of the address, as some libraries have it.
        tensor = Tensor(self.array.ctypes.data - 64, Device(*self.device), rank, DataType(2, self.bits, 1),
                        shape if self.has_shape else None, None if row_major else strides, 64)  # fmt: skip
        deleter = DELETER(self.take_back)
        managed = Managed(tensor, None, ctypes.cast(deleter, ctypes.c_void_p))
        self.keep += [shape, strides, deleter, managed]
        self.lent += 1
        return new_capsule(ctypes.addressof(managed), b"dltensor", None)

    def take_back(self, _: int) -> None:
        self.returned += 1


def test_memory_comes_back(qkv: Inputs) -> None:
    producers = [Producer(x) for x in (qkv[0][:, ::2], *qkv[1:])]
    out = np.empty((2, 10, 4, 8), np.float32)
    tilewise.attention(*producers, out=out)
    assert np.array_equal(out, tilewise.attention(qkv[0][:, ::2], *qkv[1:]))
    assert [(p.lent, p.returned) for p in producers] == [(1, 1)] * 3


def test_memory_comes_back_after_an_error(qkv: Inputs) -> None:
    producers = [Producer(x) for x in qkv]
    with pytest.raises(ValueError, match="softcap"):
        tilewise.attention(*producers, softcap=-1.0)
    assert [p.returned for p in producers] == [1] * 3


def test_results_of_a_library_without_from_dlpack(qkv: Inputs) -> None:
    out, lse = tilewise.attention(*(Producer(x) for x in qkv), return_lse=True, causal=True)
    expected, expected_lse = tilewise.attention(*qkv, return_lse=True, causal=True)
    assert np.array_equal(np.from_dlpack(out), expected)
    assert np.array_equal(np.from_dlpack(lse), expected_lse)


def test_results_with_heads_first(qkv: Inputs) -> None:
    turned = [Producer(x.swapaxes(1, 2)) for x in qkv]
    out = np.from_dlpack(tilewise.attention(*turned, layout="bhsd"))
    assert np.array_equal(out.swapaxes(1, 2), tilewise.attention(*qkv))


def test_devices(qkv: Inputs) -> None:
    q, k, v = qkv
    with pytest.raises(ValueError, match="k is on cuda:0 but q is on cpu; all arrays are on one device"):
        tilewise.attention(q, Producer(k, (2, 0)), v)
    with pytest.raises(ValueError, match="k is on cuda:1 but q is on cuda:0"):
        tilewise.attention(Producer(q, (2, 0)), Producer(k, (2, 1)), v)
    with pytest.raises(ValueError, match=r"k is on DLPack device \(10, 1\) but q is on cpu"):
        tilewise.attention(q, Producer(k, (10, 1)), v)
    with pytest.raises(ValueError, match="device_type is 10"):
        tilewise.attention(*(Producer(x, (10, 0)) for x in qkv))
    assert tilewise.attention(*(Producer(x, (3, 0)) for x in qkv)) is not None  # pinned memory is the host's


def test_unknown_type(qkv: Inputs) -> None:
    q = Producer(qkv[0], bits=64)
    with pytest.raises(TypeError, match="q has type float64"):
        tilewise.attention(q, *qkv[1:])
    assert q.returned == 1


@pytest.mark.parametrize(("rank", "has_shape"), [(4, False), (-1, True), (-(2**31), True)])
def test_broken_producers(qkv: Inputs, rank: int, has_shape: bool) -> None:
    q = Producer(qkv[0], rank=rank, has_shape=has_shape)
    with pytest.raises(ValueError, match=f"q has {rank} axes by DLPack"):
        tilewise.attention(q, *qkv[1:])
    assert q.returned == 1


class ReadOnly:
    """NumPy's own DLPack 1, which tells read-only memory."""

    def __init__(self, array: Float32) -> None:
        self.array = array
        self.array.flags.writeable = False

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)


def test_read_only_by_dlpack(qkv: Inputs) -> None:
    if np.lib.NumpyVersion(np.__version__) < "2.1.0":
        pytest.skip("NumPy before 2.1 lends no read-only arrays")
    assert tilewise.attention(*(ReadOnly(x) for x in qkv)) is not None
    with pytest.raises(ValueError, match="out is read-only"):
        tilewise.attention(*qkv, out=ReadOnly(np.empty((2, 19, 4, 8), np.float32)))


class Refusing:
    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, **_: Any) -> Any:
        raise BufferError("not today")


def test_what_a_library_says_is_passed_on(qkv: Inputs) -> None:
    with pytest.raises(BufferError, match="not today"):
        tilewise.attention(Refusing(), *qkv[1:])


def test_views_of_known_memory(qkv: Inputs) -> None:
    def view(x: Float32) -> Any:
        return (x.ctypes.data, "float32", x.shape, tuple(stride // 4 for stride in x.strides))

    out = np.empty((2, 10, 4, 8), np.float32)
    tilewise.attention(view(qkv[0][:, ::2]), view(qkv[1]), view(qkv[2]), out=view(out))
    assert np.array_equal(out, tilewise.attention(qkv[0][:, ::2], *qkv[1:]))


def test_results_outlive_their_inputs(rng: np.random.Generator) -> None:
    q = random(rng, 1, 9, 2, 8)
    gone = weakref.ref(q)
    out = tilewise.attention(q, q, q)
    expected = out.copy()
    del q
    gc.collect()
    assert gone() is None
    assert np.array_equal(out, expected)


def test_arrays_are_kept_until_the_call_ends(qkv: Inputs) -> None:
    """Those that only the dict of options holds, which code of another array changes."""
    mask = np.ones((19, 23), bool)
    gone = weakref.ref(mask)
    alive: list[bool] = []

    class Clearing(Producer):
        def __dlpack__(self) -> Any:
            options.clear()
            alive.append(gone() is not None)
            return super().__dlpack__()

    options: dict[str, Any] = {"mask": mask, "bias": Clearing(np.zeros((19, 23), np.float32))}
    del mask
    out = _core.forward(*qkv, None, None, None, False, options)
    assert alive == [True]
    assert gone() is None
    assert np.array_equal(out, tilewise.attention(*qkv))
