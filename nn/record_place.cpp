// A search backwards over the inputs, nearest records first.
#include "nn/record_place.h"

#include <algorithm>
#include <set>

namespace sinkgrad {

const Record* maker_of(const Tape& tape, uint32_t id) {
  const auto records = tape.records();  // in order of their outputs
  const auto found = std::lower_bound(records.begin(), records.end(), id, [](const Record& r, uint32_t wanted) { return r.output < wanted; });
  return found != records.end() && found->output == id ? &*found : nullptr;
}

const Parameter* parameter_at(Module& module, const void* data) {
  for (const Parameter& p : module.parameters()) {
    const auto* begin = static_cast<const char*>(p.value.data);
    if (data >= begin && data < begin + p.value.bytes()) return &p;
  }
  return nullptr;
}

RecordPlace place_of(const Tape& tape, const Record& record, Module& module) {
  std::vector<const Record*> queue{&record};
  std::set<const Record*> seen{&record};
  for (size_t k = 0; k < queue.size(); ++k) {
    for (uint32_t id : tape.inputs(*queue[k]))
      if (id != Tape::kAbsent)
        if (const Parameter* p = parameter_at(module, tape.value(id).data)) {
          const size_t dot = p->name.rfind('.');
          return {dot == std::string::npos ? p->name : p->name.substr(0, dot), queue[k] == &record};
        }
    for (uint32_t id : tape.inputs(*queue[k]))
      if (const Record* before = id == Tape::kAbsent ? nullptr : maker_of(tape, tape.source(id)); before && seen.insert(before).second)
        queue.push_back(before);
  }
  return {"", false};
}

}  // namespace sinkgrad
