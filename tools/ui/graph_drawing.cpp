// The drawing puts every op just above those that need it (its layer is the longest way to the end) and, within a layer, near its inputs.
#include "tools/ui/graph_drawing.h"

#include <algorithm>

#include "core/check.h"
#include "tools/ui/canvas.h"

namespace sinkgrad {
namespace {

bool is_leaf(const GraphNode& node) { return node.kind == GraphNode::Kind::data || node.kind == GraphNode::Kind::parameter; }

std::string microseconds(double seconds) { return seconds > 0 ? fmt::format("{:.1f}", seconds * 1e6) : ""; }

/// For the eye: three digits at most.
std::string time_text(double seconds) {
  return seconds < 1e-3 ? fmt::format("{:.0f} \u00b5s", seconds * 1e6) : fmt::format("{:.1f} ms", seconds * 1e3);
}

std::string bytes_text(size_t bytes) {
  const auto b = static_cast<double>(bytes);
  return b < 1024 ? fmt::format("{} B", bytes) : b < 1024 * 1024 ? fmt::format("{:.1f} KiB", b / 1024) : fmt::format("{:.1f} MiB", b / (1024 * 1024));
}

/// Inside a quoted Graphviz string.
std::string dot_escaped(const std::string& text) {
  std::string s;
  for (char c : text) s += c == '"' || c == '\\' ? std::string{'\\', c} : std::string{c};
  return s;
}

std::string numbers_text(const GraphNode& node) {
  return (node.values.empty() ? "" : "= " + node.values) + (node.gradient.empty() ? "" : fmt::format("  gradient {}", node.gradient));
}

/// Boxes in layers.
class Drawing {
 public:
  Drawing(const std::vector<GraphNode>& nodes, const std::string& title) : nodes_(nodes), title_(title), x_(nodes.size()), layer_(nodes.size()) {
    place();
    require(count_ <= 1000, "graph: a drawing has at most 1000 boxes, got ", count_, "; write a .dot file for Graphviz instead");
    for (size_t row = 0; row < layers_.size(); ++row) arrange(layers_[row]);
    for (const GraphNode& node : nodes) slowest_ = std::max(slowest_, node.forward + node.backward);
  }

  std::string draw() {
    for (size_t k = 0; k < nodes_.size(); ++k)
      if (drawn(k))
        for (size_t input : nodes_[k].inputs)
          if (drawn(input)) edge(input, k);
    for (size_t k = 0; k < nodes_.size(); ++k)
      if (drawn(k)) box(k);
    canvas_.text(kMargin, kMargin + 10, "title", title_);
    const double width = std::max(2 * kMargin + static_cast<double>(widest_) * kColumn, 2 * kMargin + text_width(title_, 15));
    return canvas_.finish(title_, fmt::format("{} operations from the inputs at the top to the loss at the bottom", count_), width + kSide,
                          kTop + static_cast<double>(layers_.size()) * kRow);
  }

 private:
  static constexpr double kMargin = 16, kTop = 44, kRow = 84, kColumn = 236, kWidth = 220, kHeight = 58, kSide = 60;

  /// Parameters are named by the module of the op that reads them.
  bool drawn(size_t k) const { return nodes_[k].kind != GraphNode::Kind::parameter; }

  void place() {
    std::vector<size_t> way(nodes_.size());  // the longest to the end
    for (size_t k = nodes_.size(); k-- > 0;)
      for (size_t input : nodes_[k].inputs) way[input] = std::max(way[input], way[k] + 1);
    size_t longest = 0;
    for (size_t k = 0; k < nodes_.size(); ++k)
      if (drawn(k)) longest = std::max(longest, way[k]);
    layers_.resize(longest + 1);
    for (size_t k = 0; k < nodes_.size(); ++k) {
      if (!drawn(k)) continue;
      layer_[k] = longest - way[k];
      layers_[layer_[k]].push_back(k);
      ++count_;
    }
  }

  /// In the order of the middles of their inputs, side by side.
  void arrange(std::vector<size_t>& row) {
    std::vector<double> middle(nodes_.size());
    for (size_t k : row) {
      double sum = 0, inputs = 0;
      for (size_t input : nodes_[k].inputs)
        if (drawn(input)) sum += x_[input], ++inputs;
      middle[k] = inputs > 0 ? sum / inputs : kMargin;
    }
    std::stable_sort(row.begin(), row.end(), [&](size_t a, size_t b) { return middle[a] < middle[b]; });
    for (size_t i = 0; i < row.size(); ++i) x_[row[i]] = kMargin + static_cast<double>(i) * kColumn;
    widest_ = std::max(widest_, row.size());
  }

  double y(size_t k) const { return kTop + static_cast<double>(layer_[k]) * kRow; }

  void edge(size_t from, size_t to) {
    const double x1 = x_[from] + kWidth / 2, y1 = y(from) + kHeight, x2 = x_[to] + kWidth / 2, y2 = y(to);
    // A way past other layers keeps to the side of the boxes.
    const size_t span = layer_[to] - layer_[from];
    if (span == 1) {
      canvas_.add("<path class=\"curve axis\" d=\"M{:.1f} {:.1f}C{:.1f} {:.1f} {:.1f} {:.1f} {:.1f} {:.1f}\"/>\n", x1, y1, x1, y1 + 14, x2, y2 - 14,
                  x2, y2);
    } else {
      const double side = std::max(x1, x2) + kWidth / 2 + std::min(8.0 + 4.0 * static_cast<double>(span), kSide - 8);
      canvas_.add(
          "<path class=\"curve axis\" d=\"M{0:.1f} {1:.1f}C{0:.1f} {2:.1f} {3:.1f} {1:.1f} {3:.1f} {4:.1f}L{3:.1f} {5:.1f}C{3:.1f} {6:.1f} {7:.1f} "
          "{8:.1f} "
          "{7:.1f} {6:.1f}\"/>\n",
          x1, y1, y1 + 20, side, y1 + 30, y2 - 30, y2, x2, y2 - 20);
    }
  }

  void box(size_t k) {
    const GraphNode& node = nodes_[k];
    const double x = x_[k], top = y(k), time = node.forward + node.backward;
    const std::string cost = time > 0 ? fmt::format("{} + {} back", time_text(node.forward), time_text(node.backward)) : "";
    const std::string all =
        fmt::format("{} {}\n{}\n{}\n{}\n{}", node.title, node.shape.str(), node.module, node.attributes, cost, numbers_text(node));
    canvas_.add("<g><title>{}</title>\n", escape_markup(all));
    canvas_.rectangle(x, top, kWidth, kHeight, node.kind == GraphNode::Kind::half_step ? "box half" : is_leaf(node) ? "box leaf" : "box");
    canvas_.text(x + 8, top + 17, "label", node.title);
    canvas_.text(x + kWidth - 8, top + 17, "small end", node.shape.str());
    canvas_.text(x + 8, top + 33, "small", shortened(node.module.empty() ? numbers_text(node) : node.module));
    canvas_.text(x + 8, top + 49, "small", fmt::format("{}{}{}", bytes_text(node.bytes), cost.empty() ? "" : ", ", cost));
    if (slowest_ > 0 && time > 0) canvas_.rectangle(x, top + kHeight - 3, kWidth * time / slowest_, 3, "f1");
    canvas_.add("</g>\n");
  }

  /// The end tells modules apart.
  static std::string shortened(const std::string& text) {
    constexpr size_t kMost = 32;
    return text.size() <= kMost ? text : "\u2026" + text.substr(text.size() - kMost);
  }

  const std::vector<GraphNode>& nodes_;
  std::string title_;
  std::vector<double> x_;
  std::vector<size_t> layer_;
  std::vector<std::vector<size_t>> layers_;
  size_t count_ = 0, widest_ = 1;
  double slowest_ = 0;
  Canvas canvas_;
};

}  // namespace

std::string graph_table(const std::vector<GraphNode>& nodes) {
  size_t module_width = 6, inputs_width = 6;
  const auto inputs = [&](const GraphNode& node) {
    std::string text;
    for (size_t input : node.inputs)
      if (nodes[input].kind != GraphNode::Kind::parameter) text += fmt::format("{}{}", text.empty() ? "" : " ", input);
    return text;
  };
  for (const GraphNode& node : nodes) {
    module_width = std::max(module_width, node.module.size());
    inputs_width = std::max(inputs_width, inputs(node).size());
  }
  std::string table = fmt::format("{:>5}  {:<22} {:<{}}  {:<{}}  {:<18} {:>10} {:>10} {:>10}  {}\n", "node", "op", "module", module_width, "inputs",
                                  inputs_width, "shape", "bytes", "\u00b5s", "\u00b5s back", "attributes");
  GraphNode sum{};
  for (size_t k = 0; k < nodes.size(); ++k) {
    const GraphNode& node = nodes[k];
    if (node.kind == GraphNode::Kind::parameter) continue;
    sum.bytes += node.bytes, sum.forward += node.forward, sum.backward += node.backward;
    const std::string numbers = numbers_text(node);
    table += fmt::format("{:>5}  {:<22} {:<{}}  {:<{}}  {:<18} {:>10} {:>10} {:>10}  {}{}{}\n", k, node.title, node.module, module_width,
                         inputs(node), inputs_width, node.shape.str(), node.bytes, microseconds(node.forward), microseconds(node.backward),
                         node.attributes, numbers.empty() || node.attributes.empty() ? "" : "  ", numbers);
  }
  return table + fmt::format("{:>5}  {:<22} {:<{}}  {:<{}}  {:<18} {:>10} {:>10} {:>10}\n", "", "total", "", module_width, "", inputs_width, "",
                             sum.bytes, microseconds(sum.forward), microseconds(sum.backward));
}

std::string graph_dot(const std::vector<GraphNode>& nodes) {
  std::string dot = "digraph step {\n  node [fontname=\"sans-serif\", shape=box];\n";
  for (size_t k = 0; k < nodes.size(); ++k) {
    const GraphNode& node = nodes[k];
    const char* style = node.kind == GraphNode::Kind::parameter   ? ", shape=ellipse, style=filled, fillcolor=lightblue"
                        : node.kind == GraphNode::Kind::data      ? ", shape=ellipse"
                        : node.kind == GraphNode::Kind::half_step ? ", style=rounded"
                                                                  : "";
    std::string label = fmt::format("{} {}", node.title, node.shape.str());
    const std::string times =
        node.forward + node.backward > 0 ? fmt::format(", {} us + {} us back", microseconds(node.forward), microseconds(node.backward)) : "";
    for (const std::string& line : {node.module, node.attributes, is_leaf(node) ? "" : bytes_text(node.bytes) + times, numbers_text(node)})
      if (!line.empty()) label += "\n" + line;
    std::string lines;
    for (char c : dot_escaped(label)) lines += c == '\n' ? std::string("\\n") : std::string{c};
    dot += fmt::format("  n{} [label=\"{}\"{}];\n", k, lines, style);
    for (size_t input : node.inputs) dot += fmt::format("  n{} -> n{};\n", input, k);
  }
  return dot + "}\n";
}

std::string graph_svg(const std::vector<GraphNode>& nodes, const std::string& title) { return Drawing(nodes, title).draw(); }

}  // namespace sinkgrad
