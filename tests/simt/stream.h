// The stream of the host executor: what the device is asked to do runs at once, is recorded to run later, or is dropped, as a GPU with
// graphs would. Values that a launch takes from the host are frozen in a recording, and scratch memory of a recording stays its own.
#pragma once
#include <functional>
#include <memory>

#include "core/replay.h"

namespace sinkgrad::simt {

Recorder::Mode stream_mode();
void record(std::function<void()> operation);

/// Runs, records or drops an operation of the device: every kernel, library call, copy and fill passes here. Captures by value.
template <class F>
void enqueue(F&& operation) {
  if (stream_mode() == Recorder::Mode::execute)
    operation();
  else if (stream_mode() == Recorder::Mode::record)
    record(std::forward<F>(operation));
}
/// Keeps memory for as long as the recording that is being made; frees it at once when there is none.
void keep_for_recording(std::shared_ptr<void> memory);
/// Copies from the host. In a step it goes through memory of the step's slot, as with pinned memory.
void upload(void* device, const void* host, size_t bytes);
std::unique_ptr<Recorder> make_recorder();

}  // namespace sinkgrad::simt
