// queue.cpp - lazy streams: what is submitted, when it must run, and running it.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "state.h"

namespace fake {

void join(Positions& into, const Positions& from) {
  if (into.size() < from.size()) into.resize(from.size(), 0);
  for (size_t i = 0; i < from.size(); i++) into[i] = std::max(into[i], from[i]);
}

void learn(Positions& positions, u32 timeline, u64 position) {
  if (positions.size() <= timeline) positions.resize(timeline + 1, 0);
  positions[timeline] = std::max(positions[timeline], position);
}

static double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

CUresult refuse(CUresult error, const std::string& report) {
  Driver::instance().report = report;
  std::fprintf(stderr, "[llmc emulator] %s\n", report.c_str());
  return error;
}

CUresult fail_with(u32 device, CUresult error, const std::string& report) {
  Driver::instance().contexts[device]->error = error;  // sticky, as a real context's
  return refuse(error, report);
}

static CUresult code_of(emu::Fault fault) {
  switch (fault) {
    case emu::Fault::none: return CUDA_SUCCESS;
    case emu::Fault::illegal_address: return CUDA_ERROR_ILLEGAL_ADDRESS;
    case emu::Fault::misaligned: return CUDA_ERROR_MISALIGNED_ADDRESS;
    case emu::Fault::deadlock: return CUDA_ERROR_LAUNCH_TIMEOUT;
    case emu::Fault::race:
    case emu::Fault::misuse: break;
  }
  return CUDA_ERROR_LAUNCH_FAILED;
}

CUresult run_work(const Work& w, emu::Op& op) {
  Driver& d = Driver::instance();
  emu::Memory& memory = emu::Memory::instance();
  auto range = [&](const u8* p, const char* what) -> CUresult {  // a device range of an asynchronous copy
    if (!memory.in_range(p) || memory.covers(p, w.bytes)) return CUDA_SUCCESS;
    return fail_with(op.device, CUDA_ERROR_ILLEGAL_ADDRESS,
                     op.name + ": " + what + ": " + memory.check(p, w.bytes, 1, op.device).text);
  };
  auto reported = [&](const emu::Failure& f) {
    return f.fault == emu::Fault::none ? CUDA_SUCCESS : fail_with(op.device, code_of(f.fault), f.message);
  };
  auto races = [&](const u8* p, bool write) -> CUresult {
    if (!d.prefer_checked || !memory.in_range(p)) return CUDA_SUCCESS;
    return reported(emu::race_copy(op, p, w.bytes, write));
  };
  switch (w.kind) {
    case Work::Kind::empty: return CUDA_SUCCESS;
    case Work::Kind::host: w.callback(); return CUDA_SUCCESS;
    case Work::Kind::kernel: {
      const Launch& l = w.launch;
      if (l.function->module->unloaded)
        return fail_with(op.device, CUDA_ERROR_LAUNCH_FAILED, op.name + ": its module was unloaded before it ran");
      std::vector<void*> params;
      for (auto& p : l.params) params.push_back(const_cast<Line*>(p.lines.data()));
      emu::LaunchInfo info;
      info.op = &op, info.kernel = l.function->entry, info.params = params.data();
      info.grid = l.grid, info.block = l.block, info.smem_bytes = l.smem_bytes;
      info.regs_per_thread = l.function->facts.registers;
      info.device = op.device, info.checked = l.function->module->twin->checked, info.schedule = d.schedule;
      info.schedule.seed += op.id;
      d.kernels_run++;
      const emu::Failure f = emu::run_grid(info);
      return f.fault == emu::Fault::none ? CUDA_SUCCESS : fail_with(op.device, code_of(f.fault), f.message);
    }
    case Work::Kind::copy: {
      const u8* src = w.staged.empty() ? w.src : w.staged.data();
      if (CUresult r = range(w.dst, "destination")) return r;
      if (w.staged.empty()) if (CUresult r = range(src, "source")) return r;
      if (CUresult r = races(w.dst, true)) return r;
      if (CUresult r = races(src, false)) return r;
      std::memmove(w.dst, src, w.bytes);
      return CUDA_SUCCESS;
    }
    case Work::Kind::fill: {
      if (CUresult r = range(w.dst, "memset")) return r;
      if (CUresult r = races(w.dst, true)) return r;
      for (size_t i = 0; i < w.bytes; i += w.value_bytes) std::memcpy(w.dst + i, &w.value, w.value_bytes);
      return CUDA_SUCCESS;
    }
    case Work::Kind::free: {
      if (CUresult r = d.prefer_checked ? reported(emu::race_free(op, w.dst, w.bytes)) : CUDA_SUCCESS) return r;
      d.async_freed.erase(w.dst);
      return memory.release(w.dst) ? CUDA_SUCCESS : fail_with(op.device, CUDA_ERROR_INVALID_VALUE, op.name + ": freed twice");
    }
  }
  return CUDA_ERROR_UNKNOWN;
}

// Runs the first queued operation of a stream, after everything it is ordered behind.
static CUresult run_first(Stream& s) {
  Queued q = std::move(s.queue.front());
  s.queue.pop_front();
  for (u32 t = 1; t < q.op->knows.size(); t++)
    if (t != s.timeline)
      if (CUresult r = require(t, q.op->knows[t])) return r;
  const CUresult r = q.graph ? run_graph(*q.graph, *q.op) : run_work(q.work, *q.op);
  s.completed++;
  s.finished_at[s.completed] = now();
  return r;
}

CUresult require(u32 timeline, u64 position) {
  Stream& s = Driver::instance().streams[timeline];
  while (s.completed < position && !s.queue.empty())
    if (CUresult r = run_first(s)) return r;
  return CUDA_SUCCESS;
}

void progress(Stream& s) {
  Driver& d = Driver::instance();
  if (d.schedule.mode == emu::Mode::reverse) require(s.timeline, s.submitted);
  if (d.schedule.mode == emu::Mode::random && (d.random() & 1)) {
    Stream& any = d.streams[1 + d.random() % (d.streams.size() - 1)];
    if (!any.queue.empty()) run_first(any);
  }
}

// Ordering of the legacy default stream against blocking streams (CUDA C++ Programming Guide 3.2.8.5.3).
static void order_default_stream(Stream& s) {
  Driver& d = Driver::instance();
  Stream& legacy = d.default_stream(s.device);
  if (&s == &legacy) {
    for (size_t t = 1; t < d.streams.size(); t++)
      if (d.streams[t].blocking && d.streams[t].device == s.device) {
        join(s.knows, d.streams[t].knows);
        learn(s.knows, u32(t), d.streams[t].submitted);
      }
  } else if (s.blocking) {
    join(s.knows, legacy.knows);
    learn(s.knows, legacy.timeline, legacy.submitted);
  }
}

static emu::Op* new_op(Stream& s, std::string name) {
  Driver& d = Driver::instance();
  order_default_stream(s);
  join(s.knows, d.host_knows);
  learn(s.knows, s.timeline, s.submitted);
  emu::Op& op = d.ops.emplace_back();
  op.id = u32(d.ops.size());
  op.name = std::move(name);
  op.device = s.device;
  op.timeline = s.timeline;
  op.position = ++s.submitted;
  op.knows = s.knows;
  return &op;
}

static std::string name_of(const Work& w, const Stream& s) {
  switch (w.kind) {
    case Work::Kind::kernel: return w.launch.function->name + emu::text(" (stream %u)", s.timeline);
    case Work::Kind::copy: return emu::text("memcpy of %zu bytes (stream %u)", w.bytes, s.timeline);
    case Work::Kind::fill: return emu::text("memset of %zu bytes (stream %u)", w.bytes, s.timeline);
    case Work::Kind::free: return emu::text("cuMemFreeAsync (stream %u)", s.timeline);
    default: return emu::text("host function (stream %u)", s.timeline);
  }
}

CUresult submit(Stream& s, Work work) {
  if (s.capture) {
    auto node = std::make_unique<Node>();
    node->dependencies = s.tail;
    if (work.kind == Work::Kind::kernel && work.launch.programmatic && s.tail.size() == 1 &&
        s.tail[0]->work.kind == Work::Kind::kernel)
      node->programmatic = s.tail[0];
    node->work = std::move(work);
    s.tail = {node.get()};
    s.capture->graph->nodes.push_back(std::move(node));
    return CUDA_SUCCESS;
  }
  const bool programmatic = work.kind == Work::Kind::kernel && work.launch.programmatic;
  emu::Op* op = new_op(s, name_of(work, s));
  if (programmatic) op->primary = s.last_kernel;
  s.last_kernel = work.kind == Work::Kind::kernel ? op : nullptr;
  s.queue.push_back({std::move(work), nullptr, op});
  progress(s);
  return CUDA_SUCCESS;
}

CUresult submit_graph(Stream& s, std::shared_ptr<GraphExec> exec) {
  emu::Op* op = new_op(s, emu::text("graph launch (stream %u)", s.timeline));
  op->graph = exec->order;
  s.last_kernel = nullptr;
  // The graph's work is fixed at launch: later updates of the executable graph concern later launches.
  s.queue.push_back({{}, std::make_shared<GraphExec>(*exec), op});
  progress(s);
  return CUDA_SUCCESS;
}

CUresult finish(Stream& s) {
  Driver& d = Driver::instance();
  if (CUresult r = require(s.timeline, s.submitted)) return r;
  join(d.host_knows, s.knows);
  learn(d.host_knows, s.timeline, s.submitted);
  return CUDA_SUCCESS;
}

CUresult synchronous(Stream& s, Work work) {
  if (CUresult r = submit(s, std::move(work))) return r;
  return finish(s);
}

}  // namespace fake
