"""What the comparisons need of tilewise.h, by ctypes: attention on tensors that give pointer, shape and stride."""

from __future__ import annotations

import ctypes
import json
from typing import Any, TypeVar

F32, F16, BF16 = 1, 2, 3
CPU, CUDA = 1, 2
CAUSAL, DETERMINISTIC = 1 << 0, 1 << 8


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("shape", ctypes.c_int64 * 4),
        ("stride", ctypes.c_int64 * 4),
        ("dtype", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    )


KINDS = {
    "u32": ctypes.c_uint32,
    "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
    "u64": ctypes.c_uint64,
    "f32": ctypes.c_float,
}


def _fields(text: str) -> list[tuple[str, type[Any]]]:
    """What ctypes takes for "name name:type .."; a name without a type is a tensor."""
    return [(name, KINDS.get(kind, Tensor)) for name, _, kind in (word.partition(":") for word in text.split())]


class Attention(ctypes.Structure):
    _fields_ = _fields("""
        struct_size:u32 flags:u32 device_type:i32 device_index:i32 threads:i32 sm_margin:i32 num_splits:i32 reserved:i32
        q k v out lse cu_seqlens_q cu_seqlens_k seqused_q seqused_k leftpad_k batch_index_k block_table
        max_seqlen_q:i64 max_seqlen_k:i64 q_scale k_scale v_scale
        softmax_scale:f32 softcap:f32 dropout_p:f32 reserved1:i32 bias alibi_slopes
        window_left:i64 window_right:i64 attention_chunk:i64 mask key_begin key_end q_positions k_positions
        sink dropout_seed:u64 dropout_offset:u64 dropout_state prior_out prior_lse""")


class AttentionGrad(ctypes.Structure):
    _fields_ = _fields("struct_size:u32 flags:u32 dout dlse dq dk dv dbias dsink")


class Plan(ctypes.Structure):
    _fields_ = (("workspace_bytes", ctypes.c_uint64), ("private_data", ctypes.c_uint64 * 31))


class Exec(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("stream", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_uint64),
        ("pool", ctypes.c_void_p),
        ("fault", ctypes.c_void_p),
    )


Struct = TypeVar("Struct", Attention, AttentionGrad, Exec)


def init(struct_type: type[Struct]) -> Struct:
    struct = struct_type()
    struct.struct_size = ctypes.sizeof(struct_type)
    return struct


class Refused(RuntimeError):
    """What tw_last_error says."""


class Library:
    def __init__(self, path: str) -> None:
        self.lib = ctypes.CDLL(path)
        self.lib.tw_last_error.restype = ctypes.c_char_p

    def check(self, status: int) -> None:
        if status != 0:
            raise Refused(self.lib.tw_last_error().decode())

    def plan(self, problem: Attention, grad: AttentionGrad | None = None) -> Plan:
        plan = Plan()
        gradients = ctypes.byref(grad) if grad else None
        self.check(self.lib.tw_attention_plan(ctypes.byref(problem), gradients, ctypes.byref(plan)))
        return plan

    def explain(self, problem: Attention, grad: AttentionGrad | None = None) -> dict[str, Any]:
        text = ctypes.create_string_buffer(1 << 16)
        gradients = ctypes.byref(grad) if grad else None
        self.lib.tw_attention_explain(ctypes.byref(problem), gradients, text, ctypes.c_size_t(len(text)))
        said: dict[str, Any] = json.loads(text.value)
        return said

    def run(self, plan: Plan, problem: Attention, grad: AttentionGrad | None, execution: Exec) -> None:
        gradients = ctypes.byref(grad) if grad else None
        self.check(
            self.lib.tw_attention_run(ctypes.byref(plan), ctypes.byref(problem), gradients, ctypes.byref(execution))
        )
