// A gradient is final when every use of its parameter that forward has seen has had its backward. Nothing depends on that being found for all:
// finish() starts the rest.
#include "nn/gradient_sum.h"

#include <chrono>

namespace sinkgrad {

GradientSum::GradientSum(const ParameterPack& pack, const Ranks& ranks, int64_t bucket_bytes) : pack_(&pack), ranks_(ranks) {
  require(pack.dtype() == DType::f32, "gradient sum: takes f32 gradients, got ", name_of(pack.dtype()));
  communicator_ = open_communicator(pack.device(), {ranks.rank(), ranks.size(), [ranks](void* memory, size_t bytes) { ranks.share(memory, bytes); }});
  if (!communicator_) host_ = pack.device() == Device::cpu() ? pack.gradients() : Tensor(pack.gradients().shape(), DType::f32);
  const float* first = pack.gradients().view().as<float>();
  int64_t end = pack.gradients().count();
  const auto& parameters = pack.module().parameters();
  for (auto p = parameters.rbegin(); p != parameters.rend(); ++p) {
    const int64_t begin = std::next(p) == parameters.rend() ? 0 : p->grad.as<float>() - first;
    if ((end - begin) * static_cast<int64_t>(sizeof(float)) < bucket_bytes && begin > 0) continue;
    buckets_.push_back({begin, end});
    end = begin;
  }
}

/// The bucket of an address in one of the pack's flat buffers; null for others.
GradientSum::Bucket* GradientSum::bucket_of(const void* element, const Tensor& flat) {
  const auto* x = static_cast<const float*>(element);
  const float* first = flat.view().as<float>();
  if (std::less<>()(x, first) || !std::less<>()(x, first + flat.count())) return nullptr;
  const auto found = std::partition_point(buckets_.begin(), buckets_.end(), [&](const Bucket& b) { return b.begin > x - first; });
  return &*found;
}

void GradientSum::start(Tape& tape) {
  for (Bucket& b : buckets_) b.missing = 0;
  started_ = 0;
  if (tape.observer() != this) other_ = tape.observer();  // else an error ended the step before
  tape.set_observer(this);
}

void GradientSum::after_forward(const Tape& tape, const Record& record) {
  for (const uint32_t id : tape.inputs(record))
    if (id != Tape::kAbsent && tape.requires_grad(id))
      if (Bucket* b = bucket_of(tape.value(id).data, pack_->values())) ++b->missing;
  if (other_) other_->after_forward(tape, record);
}

void GradientSum::after_backward(const Tape& tape, const Record& record, std::span<const Grad> in_grad) {
  if (other_) other_->after_backward(tape, record, in_grad);
  for (const Grad& g : in_grad)
    if (Bucket* b = g ? bucket_of(g.view.data, pack_->gradients()) : nullptr) --b->missing;
  if (!communicator_ && pack_->device() != Device::cpu()) return;  // a copy to the host now would make the device wait
  while (started_ < buckets_.size() && buckets_[started_].missing == 0) start_bucket();
  ranks_.poll();
}

void GradientSum::start_bucket() {
  const Bucket& b = buckets_[started_++];
  if (communicator_) return communicator_->start_sum(pack_->gradients().view().rows(b.begin, b.end));
  ranks_.start_sum(host_.span<float>().subspan(static_cast<size_t>(b.begin), static_cast<size_t>(b.end - b.begin)));
}

void GradientSum::finish(Tape& tape) {
  tape.set_observer(std::exchange(other_, nullptr));
  const bool through_host = !communicator_ && pack_->device() != Device::cpu();
  if (through_host) host_.copy_from(pack_->gradients());
  overlapped_ = static_cast<int64_t>(started_);
  while (started_ < buckets_.size()) start_bucket();
  if (communicator_) return communicator_->finish_sums();
  const auto begin = std::chrono::steady_clock::now();
  ranks_.finish_sums();
  waited_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (through_host) Tensor(pack_->gradients()).copy_from(host_);
}

}  // namespace sinkgrad
