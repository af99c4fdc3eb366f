// The tape on paper: a text table and a Graphviz graph. Both are loops, so a tape of a million records is fine.
//
//   dump_table(std::cout, tape);             // parameters and constants, then one line per op that ran
//   dump_dot(file, tape);                    // dot -Tsvg
#pragma once
#include <ostream>

#include "core/tape.h"

namespace sinkgrad {

struct DumpOptions {
  int64_t max_values = 0;  ///< outputs of at most this many elements are shown with their values
};

/// One line per leaf and per record: number, op, inputs and output as `v<id><shape>`, bytes of output and saved buffers, attributes.
void dump_table(std::ostream& out, const Tape& tape, const DumpOptions& options = {});
/// One box per record, one ellipse per leaf (filled: a parameter, that is a leaf with a gradient), an arrow per input with its shape.
void dump_dot(std::ostream& out, const Tape& tape, const DumpOptions& options = {});

}  // namespace sinkgrad
