// TILEWISE_DEVICE marks the device functions of kernels: all of them inlined.
#pragma once

#define TILEWISE_DEVICE __device__ __forceinline__
