// When to run, record and play. A record that fits uses memory that is alive: equal hashes mean equal addresses.
#include "core/replay.h"

namespace sinkgrad {
namespace {

/// Ends the mode of the device however the step is left.
class Pass {
 public:
  Pass(Recorder& recorder, Recorder::Mode mode, int slot) : recorder_(&recorder) { recorder.begin(mode, slot); }
  ~Pass() {
    if (!recorder_) return;
    try {
      recorder_->end();
    } catch (const Error&) {  // the step's own error is on its way
    }
  }
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;
  bool end() { return std::exchange(recorder_, nullptr)->end(); }

 private:
  Recorder* recorder_;
};

}  // namespace

std::unique_ptr<Recorder> Backend::recorder() { return nullptr; }

/// The hash of the step, or nothing when the device cannot record it.
std::optional<uint64_t> Replay::pass(Recorder::Mode mode, int slot, const Step& step) {
  Pass pass(*recorder_, mode, slot);
  try {
    const uint64_t hash = step();
    return pass.end() ? std::optional(hash) : std::nullopt;
  } catch (const NotRepeatable&) {
    return std::nullopt;
  } catch (const DeviceError&) {  // a library may refuse to be recorded; an error of the step's own comes again when it runs
    if (mode != Recorder::Mode::record) throw;
    return std::nullopt;
  }
}

void Replay::run(const Step& step) {
  if (!recorder_) {
    step();
    return;
  }
  const int slot = slot_;
  slot_ = (slot_ + 1) % Recorder::kSlots;
  std::optional<uint64_t>& recorded = recorded_[static_cast<size_t>(slot)];
  if (recorded || repeated_) {
    const auto hash = pass(recorded ? Recorder::Mode::suppress : Recorder::Mode::record, slot, step);
    if (!hash) {  // what cannot be recorded now never can
      recorder_ = nullptr;
      step();
      return;
    }
    if (hash == (recorded ? recorded : last_)) {
      recorder_->play(slot);
      recorded = last_ = hash;
      ++played_;
      return;
    }
  }
  const auto hash = pass(Recorder::Mode::execute, slot, step);
  repeated_ = hash == last_;
  last_ = hash;
  if (repeated_ && recorded && recorded != hash) recorded_.fill(std::nullopt);  // another step has taken over
}

}  // namespace sinkgrad
