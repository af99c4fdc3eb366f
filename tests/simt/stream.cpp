// Recordings as lists of closures, and the upload memory of their slots.
#include "simt/stream.h"

#include <array>
#include <cstring>
#include <vector>

#include "core/check.h"
#include "cuda/context.h"
#include "simt/executor.h"

namespace sinkgrad::simt {
namespace {

struct Recording {
  std::vector<std::function<void()>> operations;
  std::vector<std::shared_ptr<void>> kept;
  std::vector<std::vector<char>> uploads;  ///< as the host left them
  size_t next_upload = 0;
};

Recorder::Mode g_mode = Recorder::Mode::execute;
Recording* g_recording = nullptr;  // of the step that is being recorded or suppressed

class HostRecorder final : public Recorder {
 public:
  void begin(Mode mode, int slot) override {
    g_mode = mode;
    cuda::context().suppress_launches(mode == Mode::suppress);
    if (mode == Mode::execute) return;
    g_recording = &recordings_[static_cast<size_t>(slot)];
    if (mode == Mode::record) *g_recording = {};
    g_recording->next_upload = 0;
  }
  bool end() override {
    g_mode = Mode::execute;
    cuda::context().suppress_launches(false);
    g_recording = nullptr;
    return true;
  }
  void play(int slot) override {
    for (const auto& operation : recordings_[static_cast<size_t>(slot)].operations) operation();
  }

 private:
  std::array<Recording, kSlots> recordings_;
};

}  // namespace

Recorder::Mode stream_mode() { return g_mode; }
void record(std::function<void()> operation) { g_recording->operations.push_back(std::move(operation)); }
void keep_for_recording(std::shared_ptr<void> memory) {
  if (g_mode == Recorder::Mode::record) g_recording->kept.push_back(std::move(memory));
}

void upload(void* device, const void* host, size_t bytes) {
  if (g_mode == Recorder::Mode::execute) {
    std::memcpy(device, host, bytes);
    return;
  }
  const size_t place = g_recording->next_upload++;
  auto& uploads = g_recording->uploads;
  if (g_mode == Recorder::Mode::record) {
    uploads.resize(std::max(uploads.size(), place + 1));
    uploads[place].resize(bytes);
    record([recording = g_recording, place, device, bytes] { std::memcpy(device, recording->uploads[place].data(), bytes); });
  }
  // A step that is suppressed may turn out to be another one; then nothing of this is used.
  if (place < uploads.size() && uploads[place].size() == bytes) std::memcpy(uploads[place].data(), host, bytes);
}

std::unique_ptr<Recorder> make_recorder() { return settings().recording ? std::make_unique<HostRecorder>() : nullptr; }

}  // namespace sinkgrad::simt
