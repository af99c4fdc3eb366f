// sinkhorn_attention: O = Sinkhorn(scale Q K^T) V for every head. A matrix that fits stays on chip (resident_*: a block, or a cluster of them);
// others stream (streaming_*: stripes of the scores are computed again from Q and K). All variants keep the same buffers, so a
// forward and its backward need not be of one variant. This file only chooses.
#include "cuda/attention.h"

namespace sinkgrad::cuda {

AttentionVariant& forced_attention_variant() {
  static AttentionVariant variant = AttentionVariant::automatic;
  return variant;
}

namespace {

/// resident(variant) says whether it did the work.
template <class Resident, class Streaming>
void run_variant(Resident resident, Streaming streaming) {
  switch (const AttentionVariant forced = forced_attention_variant()) {
    case AttentionVariant::automatic:
      if (!resident(AttentionVariant::block) && !resident(AttentionVariant::cluster)) streaming();
      break;
    case AttentionVariant::streaming: streaming(); break;
    default: require(resident(forced), "sinkhorn_attention: the variant that was asked for does not take a problem of this size");
  }
}

void forward(const Forward& f) {
  const AttentionShape s(f.in, f.attrs);
  dispatch(f.dtype(), [&]<class T>() {
    run_variant([&](AttentionVariant v) { return resident_attention_forward<T>(s, f, v); }, [&] { streaming_attention_forward<T>(s, f); });
  });
}

void backward(const Backward& b) {
  if (!b.in_grad[0] && !b.in_grad[1] && !b.in_grad[2]) return;
  const AttentionShape s(b.in, b.attrs);
  dispatch(b.dtype(), [&]<class T>() {
    run_variant([&](AttentionVariant v) { return resident_attention_backward<T>(s, b, v); }, [&] { streaming_attention_backward<T>(s, b); });
  });
}

[[maybe_unused]] const bool registered = register_cuda_kernels("sinkhorn_attention", {forward, backward});

}  // namespace
}  // namespace sinkgrad::cuda
