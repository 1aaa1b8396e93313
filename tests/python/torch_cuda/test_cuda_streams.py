"""Streams, devices and memory: calls follow torch's current stream on the device of the tensors."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import Any

import pytest
import tilewise
import tilewise.torch
import torch
from on_gpu import A_WHILE, assert_all_close, attention, both_passes, filled_late, qkv, two_gpus


def test_side_stream() -> None:
    tensors = qkv()
    expected = attention(*tensors)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        out = attention(*filled_late(tensors))
    assert not side.query()  # the call has not waited
    assert torch.cuda.default_stream().query()
    side.synchronize()
    assert torch.equal(out, expected)


def test_backward_on_a_side_stream() -> None:
    """Autograd runs it on the stream of its forward, wherever it is asked for."""
    tensors = qkv(requires_grad=True)
    expected = both_passes(attention, tensors)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(A_WHILE)
        out, lse = attention(*tensors, return_lse=True)
        loss = out.square().sum() + lse.sum()
    torch.cuda.current_stream().wait_stream(side)
    assert_all_close(torch.autograd.grad(loss, tensors), expected[2:])


def test_memory_is_reused_in_the_order_of_the_stream() -> None:
    """Results that are dropped at once, on two streams: nothing is written over before it has been read."""
    tensors = qkv(requires_grad=True, dtype=torch.bfloat16)
    expected = both_passes(attention, tensors, causal=True)
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    kept: list[Any] = []
    torch.cuda.synchronize()
    for step in range(40):
        with torch.cuda.stream(streams[step % 2]):
            results = both_passes(attention, tensors, causal=True)
            if step % 10 == 9:
                kept.append([x.clone() for x in results])
            del results
            torch.full((2, 70, 4, 64), torch.nan, device="cuda", dtype=torch.bfloat16)
    torch.cuda.synchronize()
    for results in kept:
        assert_all_close(results, expected, 2e-2)


def test_no_memory_stays_behind() -> None:
    tensors = qkv(requires_grad=True)
    both_passes(attention, tensors)
    torch.cuda.synchronize()
    gc.collect()
    before = torch.cuda.memory_allocated()
    for _ in range(20):
        both_passes(attention, tensors)
    torch.cuda.synchronize()
    gc.collect()
    assert torch.cuda.memory_allocated() == before


@two_gpus
def test_a_device_that_is_not_current() -> None:
    on_first = qkv(requires_grad=True)
    on_second = [x.detach().to("cuda:1").requires_grad_() for x in on_first]
    expected = both_passes(attention, on_first, causal=True)
    assert torch.cuda.current_device() == 0
    got = both_passes(attention, on_second, causal=True)
    assert torch.cuda.current_device() == 0
    assert all(x.get_device() == 1 for x in got)
    assert_all_close([x.to("cuda:0") for x in got], expected)
    plain = [x.detach() for x in on_second]
    for out in (attention(*plain, causal=True), tilewise.attention(*plain, causal=True)):
        assert torch.cuda.current_device() == 0
        assert out.get_device() == 1
        assert_all_close([out.to("cuda:0")], expected[:1])
    for function in (attention, tilewise.attention):
        with pytest.raises(ValueError, match="k is on cuda:1 but q is on cuda:0"):
            function(on_first[0].detach(), *plain[1:])


@two_gpus
def test_streams_of_a_device_that_is_not_current() -> None:
    """The current one there, and one that is given."""
    tensors = qkv(device="cuda:1")
    expected = attention(*tensors)
    torch.cuda.synchronize(1)
    side = torch.cuda.Stream(1)
    with torch.cuda.stream(side), torch.cuda.device(0):
        late = filled_late(tensors)
        results = [attention(*late), tilewise.attention(*late)]
    results.append(tilewise.attention(*late, stream=side))
    assert not side.query()
    assert torch.cuda.current_stream(1).query()
    side.synchronize()
    for out in results:
        assert torch.equal(out, expected)
    with pytest.raises(ValueError, match="a stream of GPU 0, but device_index is 1"):
        tilewise.attention(*tensors, stream=torch.cuda.Stream(0))
    assert torch.equal(attention(*tensors), expected)


ON_THE_SECOND = """
import ctypes, threading
import tilewise, tilewise.torch, torch
tensors = [torch.ones(1, 8, 1, 64, device="cuda:1") for _ in range(3)]
def work():
    assert bool((tilewise.torch.attention(*tensors) == 1).all())
    assert bool((tilewise.attention(*tensors) == 1).all())
thread = threading.Thread(target=work)
thread.start()
thread.join()
work()
flags, active = ctypes.c_uint(), ctypes.c_int()
assert ctypes.CDLL("libcuda.so.1").cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active)) == 0
print(active.value)
"""


@two_gpus
def test_no_context_on_another_device() -> None:
    """It would take half a gigabyte there."""
    done = subprocess.run([sys.executable, "-c", ON_THE_SECOND], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout == "0\n"


def test_many_threads() -> None:
    """Each with a stream of its own, as torch has it: current streams are a thread's."""
    from concurrent.futures import ThreadPoolExecutor

    tensors = qkv()
    expected = attention(*tensors, causal=True)
    torch.cuda.synchronize()

    def work(_: int) -> bool:
        with torch.cuda.stream(torch.cuda.Stream()):
            same = [torch.equal(attention(*tensors, causal=True), expected) for _ in range(20)]
        return all(same)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))
