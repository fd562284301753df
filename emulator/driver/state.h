// state.h - the objects behind the driver API's handles, and the rules they share.
//
// Work is queued and runs as late as is legal (or at once, or at random: LLMC_EMU_SCHEDULE). What must come
// before what is kept as vector clocks over timelines (the host and every stream): an operation may run as
// soon as everything its clock knows has run. The same clocks feed the race detector.
#pragma once
#include <cuda.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "../core/launch.h"
#include "cubin.h"

#define LLMC_API extern "C" __attribute__((visibility("default")))

namespace fake {

using emu::u32;
using emu::u64;
using emu::u8;
using Positions = std::vector<u64>;  // per timeline, the last position known to be complete

void join(Positions& into, const Positions& from);
void learn(Positions& positions, u32 timeline, u64 position);

struct DeviceSpec {
  std::string name = "llmc emulated device";
  int major = 9, minor = 0, sms = 132, clock_khz = 1700000;
  size_t memory_bytes = size_t{80} << 30, l2_bytes = size_t{50} << 20;
  int smem_block = 48 << 10, smem_optin = 227 << 10, smem_sm = 228 << 10, regs_sm = 65536, threads_sm = 2048;
};

struct Module;
struct Function {
  std::string name;
  Module* module = nullptr;
  const emu::KernelEntry* entry = nullptr;
  KernelFacts facts;
  int max_dynamic_smem = 48 << 10;
};
struct Module {
  emu::Twin* twin = nullptr;
  Cubin cubin;
  u32 device = 0;
  bool unloaded = false;  // kept, so that a launch of its functions can be told from one of anything else
  std::map<std::string, std::unique_ptr<Function>> functions;
};

// A parameter's bytes, at the alignment of any parameter type (a tensor map asks for 64).
struct alignas(64) Line { char bytes[64]; };
struct Param {
  std::vector<Line> lines;
  size_t size;
  Param(const void* p, size_t n) : lines((n + 63) / 64), size(n) { std::memcpy(static_cast<void*>(lines.data()), p, n); }
};

struct Launch {
  Function* function = nullptr;
  emu::Dim3 grid, block;
  u32 smem_bytes = 0;
  bool programmatic = false;  // programmatic stream serialization (PDL)
  std::vector<Param> params;
};

struct Work {
  enum class Kind { empty, kernel, copy, fill, free, host } kind = Kind::empty;
  Launch launch;
  u8 *dst = nullptr, *src = nullptr;
  size_t bytes = 0;
  std::vector<u8> staged;       // source bytes taken at enqueue (pageable memory)
  u32 value = 0, value_bytes = 1;
  std::function<void()> callback;
};

struct Node {
  Work work;
  std::vector<Node*> dependencies;
  Node* programmatic = nullptr;  // the dependency that is only programmatic (PDL)
};
struct Graph {
  std::vector<std::unique_ptr<Node>> nodes;
  bool owns(const Node* node) const;  // the newest are looked at first
};
struct GraphExec {
  std::vector<Work> work;
  std::vector<std::vector<size_t>> dependencies;
  std::vector<long> programmatic;          // index, or -1
  std::map<const Node*, size_t> index_of;  // handle of the graph's node -> index
  std::shared_ptr<emu::GraphOrder> order;
  u32 launches = 0;
};

struct Queued { Work work; std::shared_ptr<GraphExec> graph; emu::Op* op = nullptr; };

struct Capture { Graph* graph = nullptr; };
struct Stream {
  u32 timeline = 0, device = 0;
  bool blocking = true;            // synchronises with the legacy default stream
  u64 submitted = 0, completed = 0;
  Positions knows;                 // what the next operation is ordered behind
  std::deque<Queued> queue;
  std::map<u64, double> finished_at;
  std::shared_ptr<Capture> capture;
  std::vector<Node*> tail;         // while capturing: what the next node depends on
  const emu::Op* last_kernel = nullptr;
  bool destroyed = false, origin = false;
};
struct Event {
  u32 timeline = 0;
  u64 position = 0;
  Positions knows;
  bool recorded = false, timing = true;
  std::shared_ptr<Capture> capture;
  std::vector<Node*> tail;
};

struct Context { u32 device; CUresult error = CUDA_SUCCESS; int retained = 0; };

struct Driver {
  std::recursive_mutex mutex;
  bool initialised = false;
  pid_t process = 0;                           // that called cuInit: its children may not use the driver
  std::set<const void*> handles;               // live modules, functions, events and graphs
  std::vector<DeviceSpec> specs;
  std::vector<std::unique_ptr<Context>> contexts;
  std::deque<Stream> streams;                  // [0] unused host timeline, then the default streams, then created ones
  Positions host_knows;
  std::deque<emu::Op> ops;
  emu::Schedule schedule;
  u64 rng = 88172645463325252ull;
  std::string twin_dir, report;
  bool prefer_checked = false;
  u64 kernels_run = 0;
  std::map<void*, u32> pools;
  std::set<void*> async_freed;

  static Driver& instance();
  u64 random() { rng ^= rng << 13; rng ^= rng >> 7; return rng ^= rng << 17; }
  bool ready() const;                          // initialised, in this process
  template <class T, class H>
  T* object(H handle) {                        // behind a handle; null: not a live one
    return handles.count(handle) ? reinterpret_cast<T*>(handle) : nullptr;
  }
  Stream* stream(CUstream handle);             // null: invalid
  Stream& default_stream(u32 device) { return streams[1 + device]; }
  u32 current_device() const;
};

extern thread_local Context* current_context;

// Every entry point: lock, initialised, in a context that lives, no earlier sticky error.
#define LLMC_ENTER                                                               \
  fake::Driver& d = fake::Driver::instance();                                    \
  std::lock_guard<std::recursive_mutex> guard(d.mutex);                          \
  if (!d.ready()) return CUDA_ERROR_NOT_INITIALIZED;                             \
  if (!fake::current_context) return CUDA_ERROR_INVALID_CONTEXT;                 \
  if (!fake::current_context->retained) return CUDA_ERROR_CONTEXT_IS_DESTROYED;  \
  if (fake::current_context->error) return fake::current_context->error;

// queue.cpp
CUresult submit(Stream& s, Work work);                 // to a stream, or to the graph it captures
CUresult submit_graph(Stream& s, std::shared_ptr<GraphExec> exec);
CUresult require(u32 timeline, u64 position);          // run until that position is complete
CUresult finish(Stream& s);                            // and let the host know
CUresult synchronous(Stream& s, Work work);
void progress(Stream& s);                              // what an eager or random schedule runs at once
CUresult fail_with(u32 device, CUresult error, const std::string& report);
CUresult refuse(CUresult error, const std::string& report);  // a call's own error: not sticky, but explained
CUresult check_launch(const Launch& l);
CUresult check_loaded(const Function& f);              // its module has not been unloaded
const emu::Schedule& schedule();

// graph.cpp
std::shared_ptr<GraphExec> instantiate(const Graph& graph, std::string* why);
CUresult run_graph(const GraphExec& exec, emu::Op& op);
CUresult run_work(const Work& work, emu::Op& op);
CUresult make_launch(Launch* l, CUfunction f, const unsigned grid[3], const unsigned block[3], unsigned smem,
                     void** params);

}  // namespace fake
