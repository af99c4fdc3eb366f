// The registry of ops. A definition that breaks the contract is remembered and thrown by the first Tape, never before main.
#include "core/op.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <string>

#include "core/names.h"

namespace sinkgrad {
namespace {

struct Registry {
  std::deque<OpDef> ops;
  std::vector<const OpDef*> by_name;
  std::string first_error;
  std::vector<std::pair<std::string, OpDef::Kernels>> cuda;  ///< kernels whose op has not been registered yet
};

Registry& registry() {
  static Registry r;
  return r;
}

std::string violation(const OpDef& op) {
  if (!op.name || !*op.name) return "register_op: an op needs a name";
  if (!op.infer) return cat(op.name, ": needs a shape rule (infer)");
  if (!op.cpu.forward || !op.cpu.backward) return cat(op.name, ": needs a CPU forward and backward kernel");
  if (!op.samples) return cat(op.name, ": registered without samples, so its gradient cannot be checked");
  if (op.min_inputs > op.max_inputs) return cat(op.name, ": min_inputs ", op.min_inputs, " exceeds max_inputs ", op.max_inputs);
  for (const OpDef* other : registry().by_name)
    if (!std::strcmp(other->name, op.name)) return cat(op.name, ": registered twice");
  return {};
}

}  // namespace

double Attrs::get(const char* name) const {
  for (const Attr& a : items())
    if (!std::strcmp(a.name, name)) return a.value;
  throw Error(cat("attribute '", name, "' is missing"));
}

double Attrs::get(const char* name, double otherwise) const {
  for (const Attr& a : items())
    if (!std::strcmp(a.name, name)) return a.value;
  return otherwise;
}

const OpDef& register_op(const OpDef& op) {
  Registry& r = registry();
  if (std::string error = violation(op); !error.empty() && r.first_error.empty()) r.first_error = error;
  r.ops.push_back(op);
  for (auto i = r.cuda.begin(); op.name && i != r.cuda.end(); ++i)
    if (i->first == op.name) {
      r.ops.back().cuda = i->second;
      r.cuda.erase(i);
      break;
    }
  if (op.name && r.first_error.empty()) {
    auto at = std::lower_bound(r.by_name.begin(), r.by_name.end(), op.name,
                               [](const OpDef* a, const char* name) { return std::strcmp(a->name, name) < 0; });
    r.by_name.insert(at, &r.ops.back());
  }
  return r.ops.back();
}

bool register_cuda_kernels(const char* name, const OpDef::Kernels& kernels) {
  Registry& r = registry();
  for (OpDef& op : r.ops)
    if (op.name && !std::strcmp(op.name, name)) {
      if (op.cuda.forward && r.first_error.empty()) r.first_error = cat(name, ": CUDA kernels were registered twice");
      op.cuda = kernels;
      return true;
    }
  r.cuda.emplace_back(name, kernels);
  return true;
}

const std::vector<const OpDef*>& registered_ops() {
  require(registry().first_error.empty(), registry().first_error);
  require(registry().cuda.empty(), "register_cuda_kernels: no op is called '", registry().cuda.empty() ? "" : registry().cuda[0].first, "'");
  return registry().by_name;
}

const OpDef& find_op(const std::string& name) {
  std::vector<std::string> names;
  for (const OpDef* op : registered_ops()) {
    if (name == op->name) return *op;
    names.emplace_back(op->name);
  }
  throw InputError(cat("unknown op '", name, "'", what_there_is(name, names)));
}

}  // namespace sinkgrad
