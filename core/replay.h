// Replay: a training step that runs again and again. A device that can record what a step made it do plays the record back as long as the
// step stays the same: the host then goes through the step only to see that, and nothing of it is sent to the device one by one.
//
//   Replay replay(device);
//   replay.run([&] {
//     tape.reset();
//     state.write(...);                     // fresh numbers come to the device through Backend::copy_in ...
//     tape.backward(loss_of(tape));
//     return tape.trace();
//   });
//   const auto results = state.read();      // ... and results are read after the step
//
// A step may be called twice in one run: what it leaves behind on the host must not depend on how often it was called.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "core/check.h"
#include "core/device.h"

namespace sinkgrad {

/// Thrown inside a step by a device that cannot record or skip what it is asked, such as reading a result. Replay then runs the step.
struct NotRepeatable : Error {
  using Error::Error;
};

/// What a device does with the operations (kernels, copies, fills) of a step. Steps take turns in two slots, so that the host can fill
/// the upload memory of one while the device still reads that of the other.
class Recorder {
 public:
  static constexpr int kSlots = 2;
  enum class Mode : uint8_t {
    execute,   ///< they run
    record,    ///< they become the record of the slot instead
    suppress,  ///< they are dropped, but copy_in still fills the memory that the record of the slot uploads from
  };
  virtual ~Recorder() = default;
  virtual void begin(Mode mode, int slot) = 0;
  /// Ends what begin() began; false when a recording failed.
  virtual bool end() = 0;
  /// Runs the record of a slot.
  virtual void play(int slot) = 0;
};

class Replay {
 public:
  using Step = std::function<uint64_t()>;
  explicit Replay(Device device) : Replay(device.backend().recorder()) {}
  /// Null: every step just runs.
  explicit Replay(std::unique_ptr<Recorder> recorder) : recorder_(std::move(recorder)) {}

  /// Runs one step. `step` returns a hash of everything it asked of the device, see Tape::trace(): it runs until two in a row are equal, is
  /// then recorded, and played while the hash stays the same. A different one in between, such as a smaller batch, runs and leaves the record.
  void run(const Step& step);
  /// Steps that were played from a record.
  uint64_t played() const { return played_; }

 private:
  std::optional<uint64_t> pass(Recorder::Mode mode, int slot, const Step& step);
  std::unique_ptr<Recorder> recorder_;
  std::array<std::optional<uint64_t>, Recorder::kSlots> recorded_;
  std::optional<uint64_t> last_;
  bool repeated_ = false;
  int slot_ = 0;
  uint64_t played_ = 0;
};

}  // namespace sinkgrad
