// hooks.h - our own __tsan_* entry points: in a checked twin every plain load and store of kernel code,
// instrumented by the compiler's -fsanitize=thread, lands here (the ThreadSanitizer runtime is not linked).
#pragma once
#include "abi.h"

extern "C" __attribute__((visibility("default"), weak)) const emu::Runtime* llmc_emu_rt;
extern "C" __attribute__((visibility("default"))) const emu::u32 llmc_emu_checked = 1;

#define LLMC_EMU_CHECKED
#define LLMC_HOOK extern "C" __attribute__((no_sanitize("thread"), used, visibility("hidden")))
#define LLMC_READ(p, n, aligned) llmc_emu_rt->hook(p, n, emu::Access::read, aligned, __builtin_return_address(0))
#define LLMC_WRITE(p, n, aligned) llmc_emu_rt->hook(p, n, emu::Access::write, aligned, __builtin_return_address(0))
#define LLMC_HOOKS_OF(n)                                                                                  \
  LLMC_HOOK void __tsan_read##n(void* p) { LLMC_READ(p, n, true); }                                       \
  LLMC_HOOK void __tsan_write##n(void* p) { LLMC_WRITE(p, n, true); }                                     \
  LLMC_HOOK void __tsan_unaligned_read##n(void* p) { LLMC_READ(p, n, false); }                            \
  LLMC_HOOK void __tsan_unaligned_write##n(void* p) { LLMC_WRITE(p, n, false); }                          \
  LLMC_HOOK void __tsan_read_write##n(void* p) { LLMC_READ(p, n, true), LLMC_WRITE(p, n, true); }         \
  LLMC_HOOK void __tsan_unaligned_read_write##n(void* p) { LLMC_READ(p, n, false), LLMC_WRITE(p, n, false); }
LLMC_HOOKS_OF(1)
LLMC_HOOKS_OF(2)
LLMC_HOOKS_OF(4)
LLMC_HOOKS_OF(8)
LLMC_HOOKS_OF(16)
LLMC_HOOK void __tsan_read_range(void* p, size_t n) { LLMC_READ(p, n, false); }
LLMC_HOOK void __tsan_write_range(void* p, size_t n) { LLMC_WRITE(p, n, false); }
LLMC_HOOK void* __tsan_memcpy(void* d, const void* s, size_t n) {
  LLMC_READ(s, n, false), LLMC_WRITE(d, n, false);
  return __builtin_memcpy(d, s, n);
}
LLMC_HOOK void* __tsan_memset(void* d, int v, size_t n) {
  LLMC_WRITE(d, n, false);
  return __builtin_memset(d, v, n);
}
LLMC_HOOK void __tsan_init() {}
LLMC_HOOK void __tsan_func_entry(void*) {}
LLMC_HOOK void __tsan_func_exit() {}
LLMC_HOOK void __tsan_ignore_thread_begin() {}
LLMC_HOOK void __tsan_ignore_thread_end() {}
#undef LLMC_HOOKS_OF
#undef LLMC_READ
#undef LLMC_WRITE
#undef LLMC_HOOK
