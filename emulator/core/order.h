// order.h - happens-before between operations (kernels, copies, graph nodes), as streams, events, graph
// edges and host synchronisation establish it. Independent of the order in which the emulator runs them.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "../include/llmc_emu/abi.h"

namespace emu {

// Ancestors of every node of one graph, as bit sets.
struct GraphOrder {
  size_t words = 0;
  std::vector<u64> bits;
  explicit GraphOrder(size_t nodes) : words((nodes + 63) / 64), bits(nodes * words) {}
  void add_edge(size_t from, size_t to) {  // nodes must be added in a topological order
    for (size_t w = 0; w < words; w++) bits[to * words + w] |= bits[from * words + w];
    bits[to * words + from / 64] |= u64{1} << from % 64;
  }
  bool before(size_t a, size_t b) const { return bits[b * words + a / 64] >> a % 64 & 1; }
};

// One executed operation. `knows[s]` is the last position of timeline s that is complete before this one
// starts; timeline 0 is the host, the others are streams.
struct Op {
  u32 id = 0;
  std::string name;
  u32 device = 0;
  u32 timeline = 0;
  u64 position = 0;
  std::vector<u64> knows;
  std::shared_ptr<const GraphOrder> graph;  // of the graph launch this is a node of, or null
  u32 node = 0;
  const Op* primary = nullptr;  // launched with programmatic dependent launch on top of this one
  bool before(const Op& later) const {
    if (graph && graph == later.graph && timeline == later.timeline && position == later.position)
      return graph->before(node, later.node);
    return timeline < later.knows.size() && later.knows[timeline] >= position;
  }
};

}  // namespace emu
