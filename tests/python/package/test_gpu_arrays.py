"""Arrays that say they are on a GPU, as far as no GPU is needed: what is read of them, asked of them and refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tilewise
from oracle import Float32
from test_libraries import Producer
from tilewise import _core, _gpu_arrays

Inputs = tuple[Float32, Float32, Float32]
STOP: Any = {"softcap": -1.0}  # is refused before anything looks for a GPU
GPU = (2, 0)


class Interface:
    def __init__(self, array: Any, **told: Any) -> None:
        self.array, self.told = array, told

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        of_numpy = self.array.__array_interface__
        names = ("shape", "typestr", "data", "strides")
        return {**{name: of_numpy[name] for name in names}, "version": 3, **self.told}


@pytest.mark.parametrize(
    ("stream", "asked"),
    [(None, 1), (0, 1), (1, 1), (2, 2), (77, 77), (np.int64(77), 77)],
)
def test_producers_are_asked_for_the_stream(qkv: Inputs, stream: Any, asked: int) -> None:
    producers = [Producer(x, GPU) for x in qkv]
    with pytest.raises(ValueError, match="softcap is -1"):
        tilewise.attention(*producers, out=Producer(qkv[0], GPU), stream=stream, **STOP)
    assert [x.streams for x in producers] == [[asked]] * 3
    assert [x.returned for x in producers] == [1] * 3


class OfProtocol:
    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 77


class OfTorch:
    cuda_stream = 77


class OfCupy:
    ptr = 77


@pytest.mark.parametrize("stream", [OfProtocol(), OfTorch(), OfCupy()])
def test_stream_objects(qkv: Inputs, stream: Any) -> None:
    q = Producer(qkv[0], GPU)
    with pytest.raises(ValueError, match="softcap is -1"):
        tilewise.attention(q, *(Producer(x, GPU) for x in qkv[1:]), out=Producer(qkv[0], GPU), stream=stream, **STOP)
    assert q.streams == [77]


@pytest.mark.parametrize("stream", [True, -1, 1.5, "stream", object()])
def test_what_is_no_stream(qkv: Inputs, stream: Any) -> None:
    with pytest.raises(TypeError, match=r"stream is .*; it takes a stream of CUDA"):
        tilewise.attention(*qkv, stream=stream)


def test_streams_are_for_gpus(qkv: Inputs) -> None:
    q, k, v = qkv
    lse = np.empty((2, 4, 10), np.float32)
    for act in (
        lambda: tilewise.attention(q, k, v, stream=0),
        lambda: tilewise.attention_partial(q, k, v, stream=7),
        lambda: tilewise.attention_backward(q, q, k, v, q, lse, stream=7),
        lambda: tilewise.attention_varlen(q[0], k[0], v[0], np.array([0, 10], np.int32), np.array([0, 10]), stream=7),
    ):
        with pytest.raises(ValueError, match="stream is given but q is on cpu, which has no streams"):
            act()
    with pytest.raises(ValueError, match="stream is given but out_parts is on cpu"):
        tilewise.merge([q, q], [lse, lse], stream=7)


def test_new_results_need_a_library(qkv: Inputs) -> None:
    with pytest.raises(TypeError, match="out cannot be made anew for arrays of type Producer on a GPU; give one"):
        tilewise.attention(*(Producer(x, GPU) for x in qkv))
    with pytest.raises(TypeError, match="lse cannot be made anew"):
        tilewise.attention(*(Producer(x, GPU) for x in qkv), out=Producer(qkv[0], GPU), return_lse=True)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bool", "int32", "int64", "int8"])
def test_interface(dtype: str) -> None:
    array = np.zeros((2, 6, 4), dtype)[:, ::3]
    (address, name, shape, strides, device), stream = _gpu_arrays.view(Interface(array), "mask")
    assert (address, name, shape) == (array.__array_interface__["data"][0], dtype, (2, 2, 4))
    assert strides == (24, 12, 1)
    assert device[0] == GPU[0]
    assert stream is None
    assert _gpu_arrays.view(Interface(array, stream=1), "mask")[1] == 0
    assert _gpu_arrays.view(Interface(array, stream=9), "mask")[1] == 9
    assert _gpu_arrays.view(Interface(np.zeros((3, 4), dtype)), "mask")[0][3] is None


def test_interface_in_calls(qkv: Inputs) -> None:
    q, k, v = (Interface(x) for x in qkv)
    with pytest.raises(ValueError, match="softcap is -1"):
        tilewise.attention(q, k, v, out=Interface(qkv[0]), **STOP)
    with pytest.raises(ValueError, match="k is on cpu but q is on cuda:0"):
        tilewise.attention(q, qkv[1], v)
    with pytest.raises(TypeError, match="k has type float64"):
        tilewise.attention(q, Interface(qkv[1].astype(float), typestr="<f8"), v)
    with pytest.raises(TypeError, match="k has type >f4"):
        tilewise.attention(q, Interface(qkv[1], typestr=">f4"), v)
    with pytest.raises(TypeError, match="k is a masked array"):
        tilewise.attention(q, Interface(qkv[1], mask=qkv[1]), v)
    with pytest.raises(ValueError, match=r"k has strides of \(1, 2, 3, 4\) bytes, no multiples of the 4"):
        tilewise.attention(q, Interface(qkv[1], strides=(1, 2, 3, 4)), v)


def test_streams_of_interfaces(qkv: Inputs) -> None:
    out = Interface(qkv[0])
    q, k, v = (Interface(x, stream=stream) for x, stream in zip(qkv, (5, 6, None), strict=True))
    with pytest.raises(ValueError, match="k is in use on stream 6, and the call runs on stream 5"):
        tilewise.attention(q, k, v, out=out)
    for streams in ((5, 5, None), (None, 1, 1)):
        given = (Interface(x, stream=stream) for x, stream in zip(qkv, streams, strict=True))
        with pytest.raises(ValueError, match="softcap is -1"):
            tilewise.attention(*given, out=out, **STOP)
    with pytest.raises(ValueError, match="softcap is -1"):
        tilewise.attention(q, k, v, out=out, stream=8, **STOP)


def test_views_with_a_device() -> None:
    q = (64, "float32", (1, 9, 2, 16), None, (2, 3))
    on_cpu = (64, "float32", (1, 9, 2, 16), None)
    with pytest.raises(ValueError, match="k is on cpu but q is on cuda:3"):
        _core.forward(q, on_cpu, on_cpu, on_cpu, None, None, False, {})
    with pytest.raises(TypeError, match="q: the device of a view"):
        _core.forward((*on_cpu, 2), on_cpu, on_cpu, on_cpu, None, None, False, {})
    with pytest.raises(TypeError, match="q: a view is a tuple"):
        _core.forward(on_cpu[:3], on_cpu, on_cpu, on_cpu, None, None, False, {})


def test_descriptions_with_a_device() -> None:
    """Of a GPU that nobody has: planning says so."""
    shape = tilewise.without_memory((1, 9, 2, 16), "bfloat16", device="cuda:1000")
    answer = tilewise.explain(shape, shape, shape)
    assert answer["error"]["name"] in ("TW_DEVICE_ERROR", "TW_INVALID_ARGUMENT")
    on_cpu = tilewise.without_memory((1, 9, 2, 16), "bfloat16")
    assert tilewise.traffic(shape, shape, shape) == tilewise.traffic(on_cpu, on_cpu, on_cpu)
    for device in ("gpu", "cuda:x", "cpu:1", "cuda:-1", None):
        with pytest.raises(ValueError, match=r"device is .*; there are 'cpu'"):
            tilewise.without_memory((1, 9, 2, 16), device=device)
