"""Planted bugs of launches and blocks that nothing orders."""

from __future__ import annotations

from tests.emulator.planted import Bug, peer_stream, stage, two_launches

ORDER_BUGS = (
    Bug(
        "missing event",
        "LLMC_KERNEL(64, 1) k(float* out) {\n  out[threadIdx.x] += 1;  // HERE\n}\n",
        peer_stream("event"),
        r"race on global",
    ),
    Bug(
        "missing graph edge",
        "LLMC_KERNEL(64, 1) k(float* out) {\n  out[threadIdx.x] += 1;  // HERE\n}\n",
        peer_stream("graph"),
        r"race on global",
    ),
    Bug(
        "missing griddepcontrol.wait",
        """LLMC_KERNEL(64, 1) k(float* out) {
#ifdef FINE
  grid_wait();
#endif
  out[threadIdx.x] += 1;  // HERE
}
""",
        two_launches,
        r"race on global",
    ),
    Bug(
        "counter without fence",
        """LLMC_KERNEL(32, 1) k(const unsigned* in, unsigned* counter, float* out) {
  const int t = threadIdx.x;
  out[blockIdx.x * 32 + t] = t;
  __syncthreads();
  bool last = false;
  if (t == 0) {
#ifdef FINE
    __threadfence();
#endif
    last = atomic_add(counter, 1u) == 1;
    __threadfence();
  }
  if (last) out[t] += out[32];  // HERE
}
""",
        stage,
        r"race on global memory",
    ),
)
