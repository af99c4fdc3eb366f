// Recording a training step as CUDA graphs, one per slot; see core/replay.h for when.
#pragma once
#include <array>

#include "core/replay.h"
#include "cuda/uploads.h"

struct CUgraphExec_st;

namespace sinkgrad::cuda {

class GraphRecorder final : public Recorder {
 public:
  explicit GraphRecorder(Uploads& uploads) : uploads_(&uploads) {}
  ~GraphRecorder() override;
  void begin(Mode mode, int slot) override;
  bool end() override;
  void play(int slot) override;

 private:
  bool finish_recording();
  Uploads* uploads_;
  std::array<CUgraphExec_st*, kSlots> graphs_{};
  Mode mode_ = Mode::execute;
  int slot_ = 0;
};

/// Throws NotRepeatable while a step is recorded or suppressed: `what` needs the device's results.
void refuse_in_recorded_step(const char* what);

}  // namespace sinkgrad::cuda
