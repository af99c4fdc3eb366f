// What the stream is asked between begin() and end() becomes a graph. The capture is relaxed: memory may be allocated within.
#include "cuda/graph.h"

#include "cuda/check.h"

namespace sinkgrad::cuda {
namespace {

bool is_capturing() {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  CUDA_CHECK(cudaStreamIsCapturing(context().stream(), &status));
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace

void refuse_in_recorded_step(const char* what) {
  if (context().launches_are_suppressed() || is_capturing()) throw NotRepeatable(cat("cuda: ", what, " in the middle of a step that is recorded"));
}

GraphRecorder::~GraphRecorder() {
  for (CUgraphExec_st* graph : graphs_)
    if (graph) cudaGraphExecDestroy(graph);
}

void GraphRecorder::begin(Mode mode, int slot) {
  mode_ = mode;
  slot_ = slot;
  if (mode == Mode::record) CUDA_CHECK(cudaStreamBeginCapture(context().stream(), cudaStreamCaptureModeRelaxed));
  uploads_->begin_step(slot);
  if (mode == Mode::suppress) context().suppress_launches(true);
}

bool GraphRecorder::end() {
  uploads_->end_step();
  context().suppress_launches(false);
  if (mode_ == Mode::record) return finish_recording();
  if (mode_ == Mode::execute) uploads_->mark_used(slot_);
  return true;
}

bool GraphRecorder::finish_recording() {
  CUgraphExec_st*& exec = graphs_[static_cast<size_t>(slot_)];
  if (exec) cudaGraphExecDestroy(std::exchange(exec, nullptr));
  cudaGraph_t graph = nullptr;
  cudaError_t error = cudaStreamEndCapture(context().stream(), &graph);
  if (error == cudaSuccess) error = cudaGraphInstantiate(&exec, graph, 0);
  if (graph) cudaGraphDestroy(graph);
  if (error == cudaSuccess) return true;
  cudaGetLastError();  // forgets it: the step runs without a graph
  exec = nullptr;
  return false;
}

void GraphRecorder::play(int slot) {
  CUDA_CHECK(cudaGraphLaunch(graphs_[static_cast<size_t>(slot)], context().stream()));
  uploads_->mark_used(slot);
}

}  // namespace sinkgrad::cuda
