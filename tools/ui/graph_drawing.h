// The graph of a training step for people and for Graphviz.
#pragma once
#include <string>
#include <vector>

#include "nn/inspect/graph.h"

namespace sinkgrad {

/// One line per op and half-step: number, op, module, inputs, shape, bytes, times, attributes, values.
std::string graph_table(const std::vector<GraphNode>& nodes);

/// A Graphviz graph: `dot -Tsvg`.
std::string graph_dot(const std::vector<GraphNode>& nodes);

/// A drawing from top to bottom, parameters left out; bars show each op's share of the time. Error beyond 1000 boxes.
std::string graph_svg(const std::vector<GraphNode>& nodes, const std::string& title);

}  // namespace sinkgrad
