// race.h - the race detector: vector clocks per thread, and a shadow of every byte of shared and global
// memory that remembers its last write and the reads since. After FastTrack (Flanagan and Freund, PLDI 2009),
// extended by asynchronous copies (pending entries), the async proxy, grids and streams.
#pragma once
#include <array>
#include <memory>
#include <unordered_map>
#include <vector>

#include "../include/llmc_emu/abi.h"
#include "order.h"
#include "report.h"

namespace emu {

struct Block;
struct Fiber;

constexpr u32 kWarpgroup = 0x8000;
constexpr u32 kPseudoThreads = 64;  // one clock column per mbarrier, ticked when its TMA loads land
using Clock = std::vector<u32>;

// An agent is one block of one operation (or a copy): shadow entries name it in four bytes.
u32 new_agent(const Op* op, Dim3 block_index);

// What a thread had seen when it released an atomic: clocks of its own block and of blocks it acquired from.
struct Knowledge { std::unordered_map<u32, Clock> of_agent; };
struct Acquired { u32 thread; u32 clock; std::shared_ptr<Knowledge> what; };

enum SlotFlag : u8 { kWrite = 1, kAtomic = 2, kPending = 4, kAsync = 8 };

struct Slot { u32 agent, clock; u16 thread; u8 mask, flags; Where where; };  // clock: a token while pending
constexpr u32 kSlots = 7;
struct Granule {  // 8 bytes of memory
  Slot slots[kSlots];
  u8 init, used, next_victim, sync;  // sync: bytes belong to an mbarrier
  u8 padding[12];
};
static_assert(sizeof(Slot) == 16 && sizeof(Granule) == 128);

struct RaceState {
  u32 agent = 0, stride = 0;
  std::vector<u32> clocks;            // n rows of stride
  std::vector<Granule> smem;
  std::vector<Acquired> acquired;
  std::vector<std::pair<u32, u32>> grid_waits;  // (thread, clock) at griddepcontrol.wait
  // Reads by a wgmma count as done when all four warps of the warpgroup have passed its wait: the entry's
  // thread is kWarpgroup + warpgroup, its clock an index into this list of the four lead threads' clocks.
  std::vector<std::array<u32, 4>> wgmma_waits[kMaxThreads / 128];
  u32* row(u32 thread) { return clocks.data() + size_t(thread) * stride; }
};

// Who touches memory: a fiber, or (thread >= n) a pseudo-thread of its block.
struct AccessInfo { u8 flags = 0; Where where = 0; u32 thread = 0; };

void race_begin_block(Block& block);
void race_access(Block& block, const void* p, size_t bytes, AccessInfo info);
// Marks a range as owned by an asynchronous operation; any access in between is a race.
void race_pend(Block& block, const void* p, size_t bytes, AccessInfo info, u32 token);
// Ends the pending state: the access now counts as done by `thread` at `clock`.
void race_land(Block& block, const void* p, size_t bytes, u32 token, u32 thread, u32 clock);
void race_mark_sync(Block& block, u32 smem_offset, u32 bytes, bool on);

void clock_join(u32* into, const u32* from, u32 n);
void clock_join(Clock& into, const u32* from, u32 n);
void clock_tick(Block& block, u32 thread);

// Atomics: acquire and release through an address, across blocks.
std::shared_ptr<Knowledge> release_knowledge(Block& block, u32 thread);
void sync_release(const void* address, const std::shared_ptr<Knowledge>& knowledge);
std::shared_ptr<Knowledge> sync_read(const void* address);
void acquire(Block& block, u32 thread, std::shared_ptr<Knowledge> knowledge);

// Copies and memsets by the driver: whole ranges, checked against kernels and other copies.
Failure race_copy(const Op& op, const void* p, size_t bytes, bool write);
// A whole allocation, whose pages are nobody else's: its end is a write, behind which the shadow is let go.
Failure race_free(const Op& op, const void* p, size_t bytes);
void race_reset();  // forgets every access, not what is initialised

}  // namespace emu
