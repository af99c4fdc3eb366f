// The graph of a step: every record once, edges from what it reads, modules, Sinkhorn calls opened, and the three ways to write it down.
#include <sys/wait.h>

#include <catch2/catch.hpp>
#include <cstdlib>

#include "core/file.h"
#include "nn/inspect/graph.h"
#include "nn/transformer.h"
#include "ops/ops.h"
#include "temporary_folder.h"
#include "tools/ui/graph_drawing.h"

using namespace sinkgrad;
using Catch::Matchers::Contains;

namespace {

struct Net : Module {
  MultiHeadAttention attention{*this, "attention", {.dim = 4, .heads = 2, .sinkhorn = {.iterations = 3}}};
  Linear head{*this, "head", 4, 1};
  Var operator()(Var x) { return mean(head(add(x, attention(x, x)))); }
};

struct Step {
  Net net;
  ParameterPack pack{net, DType::f32, 1};
  Tape tape;
  RecordTimes times;
  Tensor x{{2, 3, 4}};
  Var loss;
  Step() {
    tape.set_observer(&times);
    times.start();
    loss = net(tape.leaf(x));
    tape.retain_grad(loss);
    times.start();
    tape.backward(loss);
  }
  std::vector<GraphNode> nodes(const GraphOptions& options = {}) { return tape_graph(loss, net, times, options); }
};

size_t count(const std::vector<GraphNode>& nodes, const std::string& title) {
  return static_cast<size_t>(std::count_if(nodes.begin(), nodes.end(), [&](const GraphNode& n) { return n.title == title; }));
}

size_t find(const std::vector<GraphNode>& nodes, const std::string& title) {
  return static_cast<size_t>(std::find_if(nodes.begin(), nodes.end(), [&](const GraphNode& n) { return n.title == title; }) - nodes.begin());
}

}  // namespace

TEST_CASE("every record is a node with its module, bytes and times, after what it reads") {
  Step step;
  const auto nodes = step.nodes();
  const auto ops = std::count_if(nodes.begin(), nodes.end(), [](const GraphNode& n) { return n.kind == GraphNode::Kind::op; });
  CHECK(static_cast<size_t>(ops) == step.tape.records().size());
  CHECK(count(nodes, "data") == 1);
  CHECK(count(nodes, "linear") == 5);
  for (size_t k = 0; k < nodes.size(); ++k) {
    for (size_t input : nodes[k].inputs) CHECK(input < k);
    if (nodes[k].kind != GraphNode::Kind::op) continue;
    CHECK(nodes[k].forward > 0);
    CHECK(nodes[k].backward > 0);
    CHECK(nodes[k].bytes >= static_cast<size_t>(nodes[k].shape.count()) * 4);
  }
  const GraphNode& attention = nodes[find(nodes, "sinkhorn_attention")];
  CHECK(attention.module == "attention");
  CHECK_THAT(attention.attributes, Contains("iterations=3"));
  CHECK(attention.inputs.size() == 3);
  for (size_t input : attention.inputs) CHECK(nodes[input].title == "linear");
  // Output (2,3,4), potentials of two row steps and one column step for 4 matrices, statistics and row maxima.
  CHECK(attention.bytes == 4 * (24 + 4 * 2 * 3 + 4 * 3 + 4 * 4 + 4 * 3));
  CHECK(nodes[find(nodes, "head.weight")].kind == GraphNode::Kind::parameter);
  CHECK(nodes.back().title == "mean");
  CHECK(nodes.back().values.empty());
}

TEST_CASE("an opened call is its half-steps, with the same bytes in all") {
  Step step;
  const auto folded = step.nodes(), opened = step.nodes({.open = true, .max_values = 1});
  REQUIRE(opened.size() == folded.size() + 3);
  const size_t first = find(opened, "half-step 1 (rows)");
  CHECK(opened[first].shape == Shape{4, 3});
  CHECK(opened[first].inputs.size() == 2);  // queries and keys
  CHECK(opened[first + 1].title == "half-step 2 (columns)");
  CHECK(opened[first + 1].inputs == std::vector<size_t>{first});
  CHECK(opened[first + 3].title == "sinkhorn_attention");
  CHECK(opened[first + 3].inputs.front() == first + 2);
  CHECK(opened[first + 3].inputs.size() == 2);  // the last half-step and the values
  const auto bytes = [](const std::vector<GraphNode>& nodes) {
    size_t sum = 0;
    for (const GraphNode& n : nodes) sum += n.bytes;
    return sum;
  };
  CHECK(bytes(opened) == bytes(folded));
  CHECK(opened.back().gradient == "1");
  CHECK_FALSE(opened.back().values.empty());
}

TEST_CASE("table, Graphviz and drawing name every op") {
  Step step;
  const auto nodes = step.nodes({.open = true, .max_values = 1});
  const std::string table = graph_table(nodes), dot = graph_dot(nodes), svg = graph_svg(nodes, "a <step>");
  for (const std::string& text : {table, dot, svg})
    CHECK_THAT(text, Contains("sinkhorn_attention") && Contains("half-step 2 (columns)") && Contains("attention") && Contains("gradient 1"));
  CHECK_THAT(table, Contains("total") && !Contains("head.weight"));
  CHECK_THAT(dot, Catch::StartsWith("digraph step {") && Contains("head.weight") && Contains("n0 -> "));
  CHECK_THAT(svg, Catch::StartsWith("<svg") && Contains("a &lt;step&gt;") && !Contains("nan"));
  CHECK_THROWS_WITH(graph_svg(std::vector<GraphNode>(1001, GraphNode{.kind = GraphNode::Kind::op, .title = "x"}), ""),
                    Contains("at most 1000 boxes, got 1001"));
}

TEST_CASE("the program draws a recipe's step") {
  const TemporaryFolder folder;
  write_file(folder / "tiny.json", R"({"model": {"name": "set_transformer", "dim": 16, "heads": 2, "inducing": 4, "iterations": 3},
    "data": {"name": "shapes", "points": 12, "train": 24, "test": 24}, "epochs": 1, "batch_size": 8})");
  const auto run = [&](const std::string& arguments) {
    const int status =
        std::system(("cd '" + folder.path.string() + "' && '" SINKGRAD_PROGRAM "' graph tiny.json " + arguments + " >out 2>err").c_str());
    REQUIRE(WIFEXITED(status));
    return WEXITSTATUS(status);
  };
  CHECK(run("--steps 2 --open --out a.svg --out a.dot") == 0);
  CHECK_THAT(read_file(folder / "out", 1 << 20), Contains("enc.0.mab0.fc_q") && Contains("half-step 3 (rows)") && Contains("written: a.dot"));
  CHECK_THAT(read_file(folder / "a.svg", 1 << 20), Contains("One training step of ") && Contains("batches of 8"));
  CHECK(run("--out a.png") == 2);
  CHECK_THAT(read_file(folder / "err", 1 << 20), Contains("end in .svg or .dot, got 'a.png'"));
  CHECK(run("--out no/a.svg") == 5);
}
