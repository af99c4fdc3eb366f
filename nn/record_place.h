// Where in a model a record of the tape belongs: told by the parameters that it reads, since the tape itself knows no modules.
#pragma once
#include <string>

#include "nn/module.h"

namespace sinkgrad {

struct RecordPlace {
  std::string module;  ///< dotted path; empty when the record depends on no parameter
  bool own;            ///< whether the record itself reads the module's parameters, or the nearest record that it depends on does
};

RecordPlace place_of(const Tape& tape, const Record& record, Module& module);

/// The parameter that memory belongs to, also a part of it; null for other memory.
const Parameter* parameter_at(Module& module, const void* data);

/// The record that makes a value; null for leaves.
const Record* maker_of(const Tape& tape, uint32_t id);

}  // namespace sinkgrad
