"""Arrays of a GPU in the calls of `tilewise` itself: PyTorch's, CuPy's, Numba's, and bare DLPack producers."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import tilewise
import torch
from on_gpu import A_WHILE, filled_late, qkv, two_gpus
from torch import Tensor


class Producer:
    """Speaks DLPack as old libraries do, and remembers what it is asked for."""

    def __init__(self, x: Tensor) -> None:
        self.x = x
        self.streams: list[int | None] = []

    def __dlpack_device__(self) -> Any:
        return self.x.__dlpack_device__()

    def __dlpack__(self, stream: int | None = None) -> Any:
        self.streams.append(stream)
        return self.x.__dlpack__(stream=stream)


class Interface:
    """Has nothing but __cuda_array_interface__."""

    def __init__(self, x: Tensor, stream: int | None = None) -> None:
        self.x, self.stream = x, stream

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**self.x.__cuda_array_interface__, "version": 3, "stream": self.stream}


def expected_of(tensors: list[Tensor], **options: Any) -> Tensor:
    out: Tensor = tilewise.attention(*(x.cpu() for x in tensors), **options)
    return out


def assert_close(got: Any, expected: Any) -> None:
    torch.testing.assert_close(torch.as_tensor(got, device="cpu"), expected, rtol=1e-4, atol=1e-4)


def test_tensors() -> None:
    tensors = qkv()
    out, lse = tilewise.attention(*tensors, causal=True, return_lse=True)
    assert out.is_cuda
    assert_close(out, expected_of(tensors, causal=True))
    written = torch.empty_like(out)
    assert tilewise.attention(*tensors, causal=True, out=written) is written
    assert torch.equal(written, out)
    gradients = tilewise.attention_backward(torch.ones_like(out), *tensors, out, lse, causal=True)
    on_cpu = [x.cpu() for x in (torch.ones_like(out), *tensors, out, lse)]
    for x, y in zip(gradients[:3], tilewise.attention_backward(*on_cpu, causal=True)[:3], strict=True):
        assert_close(x, y)
    assert tilewise.attention(*(x.bfloat16() for x in tensors)).dtype is torch.bfloat16


def test_tensors_follow_the_current_stream() -> None:
    tensors = qkv()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        out = tilewise.attention(*filled_late(tensors))
    assert not side.query()
    side.synchronize()
    assert_close(out, expected_of(tensors))


@pytest.mark.parametrize("form", ["object", "handle", "protocol"])
def test_stream_of_the_caller(form: str) -> None:
    """Other work on the arrays comes first, though it is on another stream."""
    tensors = qkv()
    side = torch.cuda.Stream()
    stream: Any = {"object": side, "handle": side.cuda_stream}.get(form)
    if form == "protocol":
        stream = type("Stream", (), {"__cuda_stream__": lambda self: (0, side.cuda_stream)})()
    late = filled_late(tensors)
    out = tilewise.attention(*late, stream=stream)
    assert not side.query()
    side.synchronize()
    assert_close(out, expected_of(tensors))


def test_producers() -> None:
    tensors = qkv()
    producers = [Producer(x) for x in tensors]
    out = torch.empty_like(tensors[0])
    tilewise.attention(*producers, out=out)
    assert_close(out, expected_of(tensors))
    assert [x.streams for x in producers] == [[1]] * 3  # the default stream
    side = torch.cuda.Stream()
    tilewise.attention(*producers, out=out, stream=side)
    assert [x.streams[1] for x in producers] == [side.cuda_stream] * 3
    with pytest.raises(TypeError, match="out cannot be made anew for arrays of type Producer"):
        tilewise.attention(*producers)
    with pytest.raises(ValueError, match="k is on cpu but q is on cuda:0"):
        tilewise.attention(producers[0], tensors[1].cpu(), producers[2], out=out)
    side.synchronize()


def test_cuda_array_interface() -> None:
    tensors = qkv()
    q, k, v = (Interface(x) for x in tensors)
    out = torch.empty_like(tensors[0])
    tilewise.attention(q, k, v, out=Interface(out), causal=True)
    torch.cuda.synchronize()
    assert_close(out, expected_of(tensors, causal=True))
    turned = [Interface(x.transpose(1, 2)) for x in tensors]
    tilewise.attention(*turned, out=Interface(out.transpose(1, 2)), layout="bhsd")
    torch.cuda.synchronize()
    assert_close(out, expected_of(tensors))
    with pytest.raises(ValueError, match="k is in use on stream 77"):
        tilewise.attention(q, Interface(tensors[1], 77), v, out=Interface(out))


def test_explain() -> None:
    answer = tilewise.explain(*qkv())
    shape = tilewise.without_memory((2, 70, 4, 64), device="cuda:0")
    keys = tilewise.without_memory((2, 90, 2, 64), device="cuda:0")
    assert answer["kernel"].startswith("cuda.")
    assert tilewise.explain(shape, keys, keys)["kernel"] == answer["kernel"]
    assert tilewise.traffic(*qkv())["v2"] == tilewise.traffic(*(x.cpu() for x in qkv()))["v2"]


def test_cupy() -> None:
    cupy = pytest.importorskip("cupy")
    rng = np.random.default_rng(0)
    on_host = [rng.standard_normal(shape, np.float32) for shape in ((2, 30, 4, 64), (2, 40, 2, 64), (2, 40, 2, 64))]
    expected = tilewise.attention(*on_host, causal=True)
    arrays = [cupy.asarray(x) for x in on_host]
    out, lse = tilewise.attention(*arrays, causal=True, return_lse=True)
    assert isinstance(out, cupy.ndarray)
    np.testing.assert_allclose(cupy.asnumpy(out), expected, rtol=1e-4, atol=1e-4)
    written = cupy.empty_like(out)
    assert tilewise.attention(*arrays, causal=True, out=written) is written
    assert bool((written == out).all())
    merged, _ = tilewise.merge([out, out], [lse, cupy.full_like(lse, -np.inf)])
    np.testing.assert_allclose(cupy.asnumpy(merged), expected, rtol=1e-4, atol=1e-4)
    gradients = tilewise.attention_backward(cupy.ones_like(out), *arrays, out, lse, causal=True)
    assert isinstance(gradients.dq, cupy.ndarray)
    assert tilewise.attention(*(x.astype(np.float16) for x in arrays)).dtype == np.float16
    with pytest.raises(ValueError, match="k is on cpu but q is on cuda:0"):
        tilewise.attention(arrays[0], on_host[1], arrays[2])


@pytest.mark.parametrize("non_blocking", [False, True])
def test_cupy_streams(non_blocking: bool) -> None:
    """The call is on CuPy's current stream, and so is the memory of its results."""
    cupy = pytest.importorskip("cupy")
    tensors = qkv()
    expected = expected_of(tensors)
    side = cupy.cuda.Stream(non_blocking=non_blocking)
    arrays = [cupy.asarray(x) for x in tensors]
    late = [cupy.full_like(x, np.nan) for x in arrays]
    late[0][...] = tilewise.attention(*arrays) + 1  # CuPy compiles what it is asked for, which takes long
    torch.cuda.synchronize()
    with side:
        with torch.cuda.stream(torch.cuda.ExternalStream(side.ptr)):
            torch.cuda._sleep(A_WHILE)
        for x, y in zip(late, arrays, strict=True):
            x[...] = y
        out = tilewise.attention(*late) + 1
        assert not side.done
    given = cupy.zeros_like(out)
    tilewise.attention(*late, out=given, stream=side)
    side.synchronize()
    assert_close(cupy.asnumpy(out - 1), expected)
    assert_close(cupy.asnumpy(given), expected)


@two_gpus
def test_cupy_on_a_gpu_that_is_not_current() -> None:
    cupy = pytest.importorskip("cupy")
    tensors = qkv()
    with cupy.cuda.Device(1):
        arrays = [cupy.asarray(x.cpu().numpy()) for x in tensors]
        side = cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.get_current_stream().synchronize()
    for out in (tilewise.attention(*arrays), tilewise.attention(*arrays, stream=side)):
        assert cupy.cuda.runtime.getDevice() == 0
        assert out.device.id == 1
        side.synchronize()
        with cupy.cuda.Device(1):
            assert_close(cupy.asnumpy(out), expected_of(tensors))


FULL_STREAM = """
import threading, time
import cupy, tilewise
arrays = [cupy.ones((1, 8, 1, 64), cupy.float32) for _ in range(3)]
out = tilewise.attention(*arrays)
side, may_go_on = cupy.cuda.Stream(non_blocking=True), threading.Event()
side.launch_host_func(lambda _: may_go_on.wait(60), None)
threading.Timer(1, may_go_on.set).start()
for _ in range(5000):
    tilewise.attention(*arrays, out=out, stream=side)
side.synchronize()
assert may_go_on.is_set()
"""


def test_others_run_python_while_a_launch_waits() -> None:
    """A stream takes some thousand launches; the next one waits, here for a function of Python's."""
    pytest.importorskip("cupy")
    subprocess.run([sys.executable, "-c", FULL_STREAM], check=True, timeout=60)


def test_numba() -> None:
    cuda = pytest.importorskip("numba.cuda")
    tensors = qkv()
    arrays = [cuda.to_device(x.cpu().numpy()) for x in tensors]
    out = tilewise.attention(*arrays, causal=True)
    assert type(out) is type(arrays[0])
    assert_close(out.copy_to_host(), expected_of(tensors, causal=True))


@two_gpus
def test_numba_on_a_gpu_that_is_not_current() -> None:
    cuda = pytest.importorskip("numba.cuda")
    tensors = qkv()
    with cuda.gpus[1]:
        arrays = [cuda.to_device(x.cpu().numpy()) for x in tensors]
        cuda.synchronize()
    out = tilewise.attention(*arrays, causal=True)
    with cuda.gpus[1]:
        assert_close(out.copy_to_host(), expected_of(tensors, causal=True))
