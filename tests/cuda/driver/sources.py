"""Kernels of the programs that check the driver API."""

from __future__ import annotations

SOURCE = """#include "device.cuh"
LLMC_KERNEL(64, 1) add(float* to, const float* from, float scale) {
  grid_wait();
  to[threadIdx.x] += from[threadIdx.x] * scale;
}
LLMC_EXPORT(add)
LLMC_KERNEL(64, 1) beyond(float* to) {
  store4(to + threadIdx.x + 64, 0u);
}
LLMC_EXPORT(beyond)
LLMC_KERNEL(64, 1) move(float* to, const float* from) {
  store4(to + threadIdx.x, load4(from + threadIdx.x));
}
LLMC_EXPORT(move)
extern "C" __global__ void many_registers(float* p, int n) {
  float v[120];
  for (int i = 0; i < 120; i++) v[i] = p[i * 7];
  for (int k = 0; k < n; k++)
    for (int i = 0; i < 120; i++) v[i] = v[i] * v[(i + 1) % 120] + v[(i + 7) % 120];
  for (int i = 0; i < 120; i++) p[i * 7] = v[i];
}
LLMC_EXPORT(many_registers)
"""
# A cubin with 48,000 bytes of static shared memory, and its twin: twins know none, the driver reads it off the cubin.
WITH_STATIC_SHARED = """#include "device.cuh"
LLMC_KERNEL(64, 1) kept(float* to) {
  __shared__ float kept[12000];
  kept[threadIdx.x] = to[threadIdx.x];
  __syncthreads();
  to[threadIdx.x] = kept[63 - threadIdx.x];
}
LLMC_EXPORT(kept)
"""
TWIN_OF_STATIC_SHARED = """#include "device.cuh"
LLMC_KERNEL(64, 1) kept(float* to) { to[threadIdx.x] = 0.0f; }
LLMC_EXPORT(kept)
"""
