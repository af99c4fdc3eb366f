// Names: value v<id> is the output of an op, a leaf, or a reshape, which shares its source's box in the graph.
#include "core/dump.h"

#include <fmt/format.h>

#include <vector>

namespace sinkgrad {
namespace {

std::string attributes(const Tape& tape, const Record& r) {
  std::string s;
  const Attrs attrs = tape.attrs(r);  // a copy: items() would dangle in the loop without a name
  for (const Attr& a : attrs.items()) s += fmt::format("{}{}={}", s.empty() ? "" : " ", a.name, a.value);
  return s;
}

std::string values(const Tape& tape, uint32_t id, const DumpOptions& options) {
  const View& v = tape.value(id);
  if (v.shape.count() > options.max_values) return {};
  std::string s = "[";
  for (double x : to_doubles(v, tape.device())) s += fmt::format("{}{:.4g}", s.size() > 1 ? " " : "", x);
  return s + "]";
}

size_t bytes(const Tape& tape, const Record& r) {
  size_t n = tape.value(r.output).bytes();
  for (const View& v : tape.saved(r)) n += v.bytes();
  return n;
}

std::string value_name(const Tape& tape, uint32_t id) { return fmt::format("v{}{}", id, tape.value(id).shape.str()); }

/// Calls leaf(id) for every value that no op made.
template <class F>
void each_leaf(const Tape& tape, F leaf) {
  const auto records = tape.records();
  size_t next = 0;  // records are in order of their outputs
  for (uint32_t id = 0; id < tape.value_count(); ++id) {
    if (next < records.size() && records[next].output == id)
      ++next;
    else if (tape.source(id) == id)
      leaf(id);
  }
}

/// Inside a quoted Graphviz string.
std::string quoted(const std::string& s) {
  std::string q;
  for (char c : s) q += c == '"' || c == '\\' ? std::string{'\\', c} : std::string{c};
  return q;
}

}  // namespace

void dump_table(std::ostream& out, const Tape& tape, const DumpOptions& options) {
  each_leaf(tape, [&](uint32_t id) {
    const View& v = tape.value(id);
    out << fmt::format("{:<10} {} {} {} bytes {}\n", tape.requires_grad(id) ? "parameter" : "constant", value_name(tape, id), name_of(v.dtype),
                       v.bytes(), values(tape, id, options));
  });
  out << fmt::format("{:>7}  {:<20} {:<18} {:<40} {:>10}  {}\n", "record", "op", "output", "inputs", "bytes", "attributes");
  size_t number = 0;
  for (const Record& r : tape.records()) {
    std::string inputs;
    for (uint32_t id : tape.inputs(r)) inputs += id == Tape::kAbsent ? "- " : value_name(tape, id) + " ";
    out << fmt::format("{:>7}  {:<20} {:<18} {:<40} {:>10}  {} {}\n", number++, r.op->name, value_name(tape, r.output), inputs, bytes(tape, r),
                       attributes(tape, r), values(tape, r.output, options));
  }
}

void dump_dot(std::ostream& out, const Tape& tape, const DumpOptions& options) {
  out << "digraph tape {\n  node [fontname=\"sans-serif\", shape=box];\n";
  each_leaf(tape, [&](uint32_t id) {
    out << fmt::format("  v{} [shape=ellipse{}, label=\"{}\\n{}\"];\n", id, tape.requires_grad(id) ? ", style=filled, fillcolor=lightblue" : "",
                       value_name(tape, id), values(tape, id, options));
  });
  size_t number = 0;
  for (const Record& r : tape.records()) {
    out << fmt::format("  v{} [label=\"{}: {}\\n{}\\n{} {}\"];\n", r.output, number++, quoted(r.op->name), quoted(attributes(tape, r)),
                       tape.value(r.output).shape.str(), values(tape, r.output, options));
    for (uint32_t id : tape.inputs(r))
      if (id != Tape::kAbsent) out << fmt::format("  v{} -> v{} [label=\"{}\"];\n", tape.source(id), r.output, tape.value(id).shape.str());
  }
  out << "}\n";
}

}  // namespace sinkgrad
