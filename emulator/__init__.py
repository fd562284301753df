"""The emulator: CUDA kernels compiled for the CPU, executed behind the CUDA driver API. See docs/emulator.md.

Imports nothing else of llmc. `build` compiles the C++ (the driver, and twins of kernels), `devices` names the
devices that can be emulated, `session` launches twins from Python without cuda-python.
"""
