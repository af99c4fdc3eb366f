// The context of the host executor: the settings stand for the GPU's limits, library handles come from tests/simt/libraries, and scratch
// memory from the executor, which knows what of it was written.
#include "cuda/context.h"

#include <cublasLt.h>
#include <cublas_v2.h>
#include <cudnn.h>

#include <memory>
#include <vector>

#include "simt/executor.h"
#include "simt/stream.h"

namespace sinkgrad::cuda {

struct Context::Members {
  std::vector<std::shared_ptr<void>> scratch;
  cublasContext* cublas = nullptr;
  cublasLtContext* cublas_lt = nullptr;
  cudnnContext* cudnn = nullptr;
};

Context::Context(int) : members_(std::make_unique<Members>()) {
  cublasCreate(&members_->cublas);
  cublasLtCreate(&members_->cublas_lt);
  cudnnCreate(&members_->cudnn);
}
Context::~Context() = default;

Context& context() {
  static Context context(0);
  return context;
}

CUstream_st* Context::stream() const { return nullptr; }
cublasContext* Context::cublas() { return members_->cublas; }
cublasLtContext* Context::cublas_lt() { return members_->cublas_lt; }
cudnnContext* Context::cudnn() { return members_->cudnn; }
int Context::multiprocessors() const { return simt::settings().multiprocessors; }
size_t Context::shared_limit() const { return simt::settings().shared_limit; }
int Context::architecture() const { return simt::settings().architecture; }

bool Context::takes_cluster(const void*, const Launch& shape) { return shape.cluster == 1 || (architecture() >= 90 && shape.cluster <= 16); }

void* Context::take_scratch(size_t bytes) {
  members_->scratch.emplace_back(simt::take_scratch(bytes), simt::release_scratch);
  return members_->scratch.back().get();
}
size_t Context::scratch_mark() const { return members_->scratch.size(); }
void Context::release_scratch(size_t mark) {
  for (; members_->scratch.size() > mark; members_->scratch.pop_back()) simt::keep_for_recording(members_->scratch.back());
}

}  // namespace sinkgrad::cuda
