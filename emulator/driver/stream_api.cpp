// stream_api.cpp - streams, events, and capture of both into graphs.
#include "state.h"

using namespace fake;

static void join_tail(std::vector<Node*>& into, const std::vector<Node*>& from) {
  for (Node* n : from) {
    bool known = false;
    for (Node* m : into) known = known || m == n;
    if (!known) into.push_back(n);
  }
}

LLMC_API CUresult cuStreamCreate(CUstream* out, unsigned flags) {
  LLMC_ENTER
  if (flags & ~unsigned(CU_STREAM_NON_BLOCKING)) return refuse(CUDA_ERROR_INVALID_VALUE, "cuStreamCreate: unknown flags");
  Stream& s = d.streams.emplace_back();
  s.timeline = u32(d.streams.size() - 1), s.device = d.current_device();
  s.blocking = !(flags & CU_STREAM_NON_BLOCKING);
  *out = reinterpret_cast<CUstream>(&s);
  return CUDA_SUCCESS;
}
LLMC_API CUresult cuStreamCreateWithPriority(CUstream* out, unsigned flags, int) { return cuStreamCreate(out, flags); }
LLMC_API CUresult cuStreamDestroy(CUstream handle) {
  LLMC_ENTER
  Stream* s = d.stream(handle);
  if (!s || s == &d.default_stream(s->device)) return CUDA_ERROR_INVALID_HANDLE;
  s->destroyed = true;  // its queued work still runs
  return CUDA_SUCCESS;
}
LLMC_API CUresult cuStreamSynchronize(CUstream handle) {
  LLMC_ENTER
  Stream* s = d.stream(handle);
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  if (s->capture) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  return finish(*s);
}
// Answers "not ready" once per piece of queued work, so that polling makes progress.
LLMC_API CUresult cuStreamQuery(CUstream handle) {
  LLMC_ENTER
  Stream* s = d.stream(handle);
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  if (s->completed < s->submitted) {
    if (CUresult r = require(s->timeline, s->completed + 1)) return r;
    return CUDA_ERROR_NOT_READY;
  }
  return finish(*s);
}
LLMC_API CUresult cuStreamWaitEvent(CUstream handle, CUevent e, unsigned) {
  LLMC_ENTER
  Stream* s = d.stream(handle);
  auto* event = d.object<Event>(e);
  if (!s || !event) return CUDA_ERROR_INVALID_HANDLE;
  if (event->capture) {  // joins the capture that recorded the event
    if (s->capture && s->capture != event->capture) return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    if (!s->capture) s->capture = event->capture, s->tail.clear();
    join_tail(s->tail, event->tail);
    return CUDA_SUCCESS;
  }
  if (s->capture) return refuse(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "cuStreamWaitEvent: the event was recorded outside this capture");
  if (event->recorded) {
    join(s->knows, event->knows);
    s->last_kernel = nullptr;
  }
  return CUDA_SUCCESS;
}
LLMC_API CUresult cuLaunchHostFunc(CUstream handle, CUhostFn f, void* data) {
  LLMC_ENTER
  Stream* s = d.stream(handle);
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  Work w;
  w.kind = Work::Kind::host, w.callback = [f, data] { f(data); };
  return submit(*s, std::move(w));
}

LLMC_API CUresult cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode) {
  LLMC_ENTER
  Stream* s = d.stream(handle);
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  if (s == &d.default_stream(s->device)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (s->capture) return CUDA_ERROR_ILLEGAL_STATE;
  s->capture = std::make_shared<Capture>(Capture{new Graph});
  s->origin = true;
  s->tail.clear();
  return CUDA_SUCCESS;
}
LLMC_API CUresult cuStreamEndCapture(CUstream handle, CUgraph* out) {
  LLMC_ENTER
  Stream* s = d.stream(handle);
  if (!s || !s->capture) return CUDA_ERROR_ILLEGAL_STATE;
  if (!s->origin) return refuse(CUDA_ERROR_ILLEGAL_STATE, "cuStreamEndCapture: this stream joined the capture, it did not begin it");
  const auto capture = s->capture;
  std::set<const Node*> reached;  // from the origin's tail, backwards
  std::vector<const Node*> todo(s->tail.begin(), s->tail.end());
  while (!todo.empty()) {
    const Node* n = todo.back();
    todo.pop_back();
    if (reached.insert(n).second) todo.insert(todo.end(), n->dependencies.begin(), n->dependencies.end());
  }
  for (Stream& other : d.streams)
    if (other.capture == capture) other.capture = nullptr, other.tail.clear(), other.origin = false;
  if (reached.size() != capture->graph->nodes.size()) {
    *out = nullptr;
    delete capture->graph;
    return refuse(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "cuStreamEndCapture: work on another stream was not joined back by an event");
  }
  *out = reinterpret_cast<CUgraph>(capture->graph);
  d.handles.insert(*out);
  return CUDA_SUCCESS;
}
LLMC_API CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* out) {
  LLMC_ENTER
  Stream* s = d.stream(handle);
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  *out = s->capture ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}

LLMC_API CUresult cuEventCreate(CUevent* out, unsigned flags) {
  LLMC_ENTER
  if (flags & ~unsigned(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING))
    return refuse(CUDA_ERROR_INVALID_VALUE, "cuEventCreate: unknown flags, or between processes, which is not emulated");
  auto* event = new Event;
  event->timing = !(flags & CU_EVENT_DISABLE_TIMING);
  d.handles.insert(event);
  *out = reinterpret_cast<CUevent>(event);
  return CUDA_SUCCESS;
}
LLMC_API CUresult cuEventDestroy(CUevent e) {
  LLMC_ENTER
  if (!d.handles.erase(e)) return refuse(CUDA_ERROR_INVALID_HANDLE, "cuEventDestroy: no such event, or destroyed before");
  delete reinterpret_cast<Event*>(e);
  return CUDA_SUCCESS;
}
LLMC_API CUresult cuEventRecord(CUevent e, CUstream handle) {
  LLMC_ENTER
  Stream* s = d.stream(handle);
  auto* event = d.object<Event>(e);
  if (!s || !event) return CUDA_ERROR_INVALID_HANDLE;
  event->capture = s->capture;
  if (s->capture) { event->tail = s->tail; return CUDA_SUCCESS; }
  event->recorded = true;
  event->timeline = s->timeline, event->position = s->submitted;
  event->knows = s->knows;
  learn(event->knows, s->timeline, s->submitted);
  return CUDA_SUCCESS;
}
LLMC_API CUresult cuEventSynchronize(CUevent e) {
  LLMC_ENTER
  auto* event = d.object<Event>(e);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  if (event->capture) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (!event->recorded) return CUDA_SUCCESS;
  for (u32 t = 1; t < event->knows.size(); t++)
    if (CUresult r = require(t, event->knows[t])) return r;
  join(d.host_knows, event->knows);
  return CUDA_SUCCESS;
}
LLMC_API CUresult cuEventQuery(CUevent e) {
  LLMC_ENTER
  auto* event = d.object<Event>(e);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  if (!event->recorded) return CUDA_SUCCESS;
  Stream& s = d.streams[event->timeline];
  if (s.completed < event->position) {
    if (CUresult r = require(s.timeline, s.completed + 1)) return r;
    return CUDA_ERROR_NOT_READY;
  }
  return cuEventSynchronize(e);
}
LLMC_API CUresult cuEventElapsedTime(float* out, CUevent a, CUevent b) {
  LLMC_ENTER
  const auto *from = d.object<Event>(a), *to = d.object<Event>(b);
  if (!from || !to || !from->recorded || !to->recorded) return CUDA_ERROR_INVALID_HANDLE;
  if (!from->timing || !to->timing) return refuse(CUDA_ERROR_INVALID_HANDLE, "cuEventElapsedTime: an event without timing");
  const Stream &s = d.streams[from->timeline], &t = d.streams[to->timeline];
  if (s.completed < from->position || t.completed < to->position) return CUDA_ERROR_NOT_READY;
  auto at = [](const Stream& x, u64 position) { auto it = x.finished_at.find(position); return it == x.finished_at.end() ? 0.0 : it->second; };
  *out = float((at(t, to->position) - at(s, from->position)) * 1e3);
  return CUDA_SUCCESS;
}
