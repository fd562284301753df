// graph.cpp - graphs: nodes, edges, instantiation, update, and execution in any topological order.
#include <algorithm>
#include <cstring>
#include <map>
#include <unordered_map>

#include "state.h"

namespace fake {

bool Graph::owns(const Node* node) const {
  return std::any_of(nodes.rbegin(), nodes.rend(), [&](auto& n) { return n.get() == node; });
}

std::shared_ptr<GraphExec> instantiate(const Graph& graph, std::string* why) {
  auto exec = std::make_shared<GraphExec>();
  const size_t n = graph.nodes.size();
  for (auto& node : graph.nodes) exec->index_of.emplace(node.get(), exec->index_of.size());
  exec->order = std::make_shared<emu::GraphOrder>(n);
  std::vector<size_t> missing(n), ready;
  std::vector<std::vector<size_t>> successors(n);
  for (size_t i = 0; i < n; i++) {
    const Node& node = *graph.nodes[i];
    exec->work.push_back(node.work);
    exec->programmatic.push_back(node.programmatic ? long(exec->index_of.at(node.programmatic)) : -1);
    auto& dependencies = exec->dependencies.emplace_back();
    for (const Node* dependency : node.dependencies) {
      dependencies.push_back(exec->index_of.at(dependency));
      successors[dependencies.back()].push_back(i);
    }
    missing[i] = dependencies.size();
    if (!missing[i]) ready.push_back(i);
  }
  for (size_t done = 0; done < ready.size(); done++) {
    for (size_t d : exec->dependencies[ready[done]]) exec->order->add_edge(d, ready[done]);
    for (size_t s : successors[ready[done]])
      if (!--missing[s]) ready.push_back(s);
  }
  if (ready.size() == n) return exec;
  *why = "the graph has a cycle";
  return nullptr;
}

CUresult run_graph(const GraphExec& exec, emu::Op& launch) {
  Driver& d = Driver::instance();
  const size_t n = exec.work.size();
  std::vector<size_t> missing(n), ready;
  std::vector<std::vector<size_t>> successors(n);
  std::vector<emu::Op*> ops(n);
  // The race detector refers to operations for ever; without it a long run keeps none.
  std::deque<emu::Op> passing;
  bool checked = d.prefer_checked;
  for (const Work& w : exec.work) checked = checked || (w.kind == Work::Kind::kernel && w.launch.function->module->twin->checked);
  std::deque<emu::Op>& kept = checked ? d.ops : passing;
  for (size_t i = 0; i < n; i++) {
    missing[i] = exec.dependencies[i].size();
    for (size_t dependency : exec.dependencies[i]) successors[dependency].push_back(i);
    if (!missing[i]) ready.push_back(i);
  }
  size_t head = 0;
  while (head < ready.size()) {
    size_t j = head;
    if (d.schedule.mode == emu::Mode::reverse) j = ready.size() - 1;
    if (d.schedule.mode == emu::Mode::random) j = head + d.random() % (ready.size() - head);
    std::swap(ready[head], ready[j]);
    const size_t i = ready[head++];
    emu::Op& op = kept.emplace_back(launch);
    op.id = checked ? u32(d.ops.size()) : launch.id + u32(i);
    op.node = u32(i);
    const Work& w = exec.work[i];
    op.name = (w.kind == Work::Kind::kernel ? w.launch.function->name : std::string("node")) + emu::text(" (graph node %zu)", i);
    op.primary = exec.programmatic[i] >= 0 ? ops[size_t(exec.programmatic[i])] : nullptr;
    ops[i] = &op;
    if (CUresult r = run_work(w, op)) return r;
    for (size_t s : successors[i])
      if (!--missing[s]) ready.push_back(s);
  }
  return CUDA_SUCCESS;
}

}  // namespace fake

using namespace fake;

static std::map<CUgraphExec, std::shared_ptr<GraphExec>>& execs() {
  static auto* map = new std::map<CUgraphExec, std::shared_ptr<GraphExec>>;
  return *map;
}

// null: not a graph, or destroyed.
static Graph* graph_of(CUgraph g) { return Driver::instance().object<Graph>(g); }

static CUresult invalid(const char* function, const std::string& why) {
  return refuse(CUDA_ERROR_INVALID_VALUE, std::string(function) + ": " + why);
}

// Why `to` cannot come after `from`; empty: it can.
static std::string bad_dependency(const Graph& graph, const Node* from, const Node& to) {
  if (!graph.owns(from)) return "a dependency is not a node of this graph";
  if (from == &to) return "a node cannot depend on itself";
  const auto& known = to.dependencies;
  return std::count(known.begin(), known.end(), from) ? "the dependency exists already" : "";
}

static CUresult add(CUgraphNode* out, CUgraph handle, const CUgraphNode* deps, size_t count, Work work) {
  Graph* graph = graph_of(handle);
  if (!graph) return invalid("adding a node", "no such graph");
  auto node = std::make_unique<Node>();
  for (size_t i = 0; i < count; i++) {
    auto* from = reinterpret_cast<Node*>(deps[i]);
    if (const std::string why = bad_dependency(*graph, from, *node); !why.empty()) return invalid("adding a node", why);
    node->dependencies.push_back(from);
  }
  node->work = std::move(work);
  *out = reinterpret_cast<CUgraphNode>(node.get());
  graph->nodes.push_back(std::move(node));
  return CUDA_SUCCESS;
}

// What cuda.h asks of an edge's data.
static CUresult check_edge(const CUgraphEdgeData& e, const Node& from, const Node& to, bool hopper) {
  auto bad = [](const char* why) { return invalid("cuGraphAddDependencies", why); };
  for (unsigned char byte : e.reserved)
    if (byte) return bad("reserved bytes of an edge must be zero");
  if (e.to_port) return bad("an edge's to_port must be zero");
  if (e.from_port > CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER) return bad("an edge's from_port is unknown");
  if (e.from_port && from.work.kind != Work::Kind::kernel) return bad("only kernels have ports other than zero");
  if (e.type == CU_GRAPH_DEPENDENCY_TYPE_DEFAULT) {
    if (e.from_port == CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC) return bad("the programmatic port wants a programmatic edge");
  } else if (e.type != CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC) {
    return bad("an edge's type is unknown");
  } else {
    if (from.work.kind != Work::Kind::kernel || to.work.kind != Work::Kind::kernel)
      return bad("programmatic edges are for kernels");
    if (!e.from_port) return bad("a programmatic edge wants the programmatic port or that of launch order");
    if (!hopper) return refuse(CUDA_ERROR_NOT_SUPPORTED, "cuGraphAddDependencies: programmatic edges are for compute capability 9.0 and later");
    if (to.programmatic) return refuse(CUDA_ERROR_NOT_SUPPORTED, "cuGraphAddDependencies: a second programmatic edge to one node is not emulated");
  }
  if (e.from_port == CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER)
    return refuse(CUDA_ERROR_NOT_SUPPORTED, "cuGraphAddDependencies: the port of launch order is not emulated");
  return CUDA_SUCCESS;
}

static CUresult kernel_work(Work* w, const CUDA_KERNEL_NODE_PARAMS* p) {
  w->kind = Work::Kind::kernel;
  const unsigned grid[3] = {p->gridDimX, p->gridDimY, p->gridDimZ}, block[3] = {p->blockDimX, p->blockDimY, p->blockDimZ};
  if (p->extra) return refuse(CUDA_ERROR_NOT_SUPPORTED, "kernel node: the `extra` parameter buffer is not emulated");
  return make_launch(&w->launch, p->func, grid, block, p->sharedMemBytes, p->kernelParams);
}

LLMC_API CUresult cuGraphCreate(CUgraph* out, unsigned flags) {
  LLMC_ENTER
  if (flags) return invalid("cuGraphCreate", "flags must be 0");
  *out = reinterpret_cast<CUgraph>(new Graph);
  d.handles.insert(*out);
  return CUDA_SUCCESS;
}
LLMC_API CUresult cuGraphDestroy(CUgraph g) {
  LLMC_ENTER
  Graph* graph = graph_of(g);
  if (!graph) return invalid("cuGraphDestroy", "no such graph");
  d.handles.erase(g);
  delete graph;
  return CUDA_SUCCESS;
}
LLMC_API CUresult cuGraphAddKernelNode(CUgraphNode* out, CUgraph g, const CUgraphNode* deps, size_t n,
                                       const CUDA_KERNEL_NODE_PARAMS* p) {
  LLMC_ENTER
  Work w;
  if (CUresult r = kernel_work(&w, p)) return r;
  return add(out, g, deps, n, std::move(w));
}
LLMC_API CUresult cuGraphAddEmptyNode(CUgraphNode* out, CUgraph g, const CUgraphNode* deps, size_t n) {
  LLMC_ENTER
  return add(out, g, deps, n, {});
}
LLMC_API CUresult cuGraphAddMemsetNode(CUgraphNode* out, CUgraph g, const CUgraphNode* deps, size_t n,
                                       const CUDA_MEMSET_NODE_PARAMS* p, CUcontext) {
  LLMC_ENTER
  if (p->height > 1) return refuse(CUDA_ERROR_NOT_SUPPORTED, "memset node: 2-D memsets are not emulated");
  Work w;
  w.kind = Work::Kind::fill, w.dst = reinterpret_cast<u8*>(p->dst);
  w.value = p->value, w.value_bytes = p->elementSize, w.bytes = p->width * p->elementSize;
  return add(out, g, deps, n, std::move(w));
}
LLMC_API CUresult cuGraphAddMemcpyNode(CUgraphNode* out, CUgraph g, const CUgraphNode* deps, size_t n,
                                       const CUDA_MEMCPY3D* p, CUcontext) {
  LLMC_ENTER
  if (p->Height > 1 || p->Depth > 1) return refuse(CUDA_ERROR_NOT_SUPPORTED, "memcpy node: only 1-D copies are emulated");
  Work w;
  w.kind = Work::Kind::copy, w.bytes = p->WidthInBytes;
  w.dst = p->dstMemoryType == CU_MEMORYTYPE_HOST ? static_cast<u8*>(p->dstHost) : reinterpret_cast<u8*>(p->dstDevice);
  w.src = p->srcMemoryType == CU_MEMORYTYPE_HOST ? static_cast<u8*>(const_cast<void*>(p->srcHost)) : reinterpret_cast<u8*>(p->srcDevice);
  w.dst += p->dstXInBytes, w.src += p->srcXInBytes;
  return add(out, g, deps, n, std::move(w));
}
LLMC_API CUresult cuGraphAddDependencies(CUgraph g, const CUgraphNode* from, const CUgraphNode* to,
                                         const CUgraphEdgeData* edges, size_t n) {
  LLMC_ENTER
  const Graph* graph = graph_of(g);
  if (!graph) return invalid("cuGraphAddDependencies", "no such graph");
  for (size_t i = 0; i < n; i++) {
    auto *node = reinterpret_cast<Node*>(to[i]), *before = reinterpret_cast<Node*>(from[i]);
    if (!graph->owns(node)) return invalid("cuGraphAddDependencies", "a dependent is not a node of this graph");
    if (const std::string why = bad_dependency(*graph, before, *node); !why.empty()) return invalid("cuGraphAddDependencies", why);
    if (edges)
      if (CUresult r = check_edge(edges[i], *before, *node, d.specs[d.current_device()].major >= 9)) return r;
    node->dependencies.push_back(before);
    if (edges && edges[i].type == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC) node->programmatic = node->dependencies.back();
  }
  return CUDA_SUCCESS;
}
LLMC_API CUresult cuGraphGetNodes(CUgraph g, CUgraphNode* out, size_t* n) {
  LLMC_ENTER
  if (!graph_of(g)) return invalid("cuGraphGetNodes", "no such graph");
  auto& nodes = graph_of(g)->nodes;
  if (out) for (size_t i = 0; i < *n && i < nodes.size(); i++) out[i] = reinterpret_cast<CUgraphNode>(nodes[i].get());
  *n = nodes.size();
  return CUDA_SUCCESS;
}
LLMC_API CUresult cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* p) {
  LLMC_ENTER
  return kernel_work(&reinterpret_cast<Node*>(node)->work, p);
}
LLMC_API CUresult cuGraphInstantiateWithFlags(CUgraphExec* out, CUgraph g, unsigned long long flags) {
  LLMC_ENTER
  if (!graph_of(g)) return invalid("cuGraphInstantiate", "no such graph");
  if (flags > 15) return invalid("cuGraphInstantiate", "unknown flags");
  if (flags) return refuse(CUDA_ERROR_NOT_SUPPORTED, "cuGraphInstantiate: flags are not emulated");
  std::string why;
  auto exec = instantiate(*graph_of(g), &why);
  if (!exec) return invalid("cuGraphInstantiate", why);
  *out = reinterpret_cast<CUgraphExec>(exec.get());
  execs()[*out] = std::move(exec);
  return CUDA_SUCCESS;
}
LLMC_API CUresult cuGraphExecKernelNodeSetParams(CUgraphExec e, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* p) {
  LLMC_ENTER
  auto it = execs().find(e);
  if (it == execs().end()) return CUDA_ERROR_INVALID_HANDLE;
  auto index = it->second->index_of.find(reinterpret_cast<Node*>(node));
  if (index == it->second->index_of.end()) return CUDA_ERROR_INVALID_VALUE;
  Work& w = it->second->work[index->second];
  if (w.kind != Work::Kind::kernel) return CUDA_ERROR_INVALID_VALUE;
  return kernel_work(&w, p);
}
LLMC_API CUresult cuGraphExecUpdate(CUgraphExec e, CUgraph g, CUgraphExecUpdateResultInfo* info) {
  LLMC_ENTER
  auto it = execs().find(e);
  if (it == execs().end() || !graph_of(g)) return CUDA_ERROR_INVALID_HANDLE;
  std::string why;
  auto fresh = instantiate(*graph_of(g), &why);
  if (!fresh || fresh->dependencies != it->second->dependencies) {  // an update may not change the topology
    std::memset(info, 0, sizeof *info);
    info->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  }
  it->second->work = fresh->work;
  std::memset(info, 0, sizeof *info);
  info->result = CU_GRAPH_EXEC_UPDATE_SUCCESS;
  return CUDA_SUCCESS;
}
LLMC_API CUresult cuGraphExecDestroy(CUgraphExec e) {
  LLMC_ENTER
  return execs().erase(e) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
LLMC_API CUresult cuGraphUpload(CUgraphExec e, CUstream handle) {
  LLMC_ENTER
  return d.stream(handle) && execs().count(e) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
LLMC_API CUresult cuGraphLaunch(CUgraphExec e, CUstream handle) {
  LLMC_ENTER
  Stream* s = d.stream(handle);
  auto it = execs().find(e);
  if (!s || it == execs().end()) return CUDA_ERROR_INVALID_HANDLE;
  if (s->capture) return refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "cuGraphLaunch into a capturing stream (child graphs are not emulated)");
  for (const Work& w : it->second->work)
    if (CUresult r = w.kind == Work::Kind::kernel ? check_loaded(*w.launch.function) : CUDA_SUCCESS) return r;
  return submit_graph(*s, it->second);
}
