// The sum of the gradients of all ranks, made while backward still runs. The flat buffer of a ParameterPack is cut into buckets of whole parameters,
// from its end, where backward begins; the sum of a bucket starts when its last gradient is written.
//
//   GradientSum sum(pack, ranks);
//   sum.start(tape);             // before the first op of the step
//   ... forward, tape.backward(loss) ...
//   sum.finish(tape);            // the pack's gradients are those of all ranks
#pragma once
#include <vector>

#include "core/communicator.h"
#include "nn/module.h"
#include "nn/ranks.h"

namespace sinkgrad {

class GradientSum : public Observer {
 public:
  static constexpr int64_t kBucketBytes = 64 << 10;

  /// The pack, of f32, must outlive the sum. A bucket is closed once it has `bucket_bytes`.
  GradientSum(const ParameterPack& pack, const Ranks& ranks, int64_t bucket_bytes = kBucketBytes);

  /// Watches the tape from now on, beside its observer.
  void start(Tape& tape);
  /// Starts what has not started (the gradients of parameters that no backward reached, those of a rank without items) and waits for all.
  void finish(Tape& tape);

  int64_t buckets() const { return static_cast<int64_t>(buckets_.size()); }
  /// Buckets whose sum had started when the last finish() was called.
  int64_t overlapped() const { return overlapped_; }
  /// Seconds that the last finish() waited for the other ranks; 0 where a device waits for itself.
  double waited() const { return waited_; }

  void after_forward(const Tape& tape, const Record& record) override;
  void after_backward(const Tape& tape, const Record& record, std::span<const Grad> in_grad) override;

 private:
  struct Bucket {
    int64_t begin, end;   ///< elements of the flat buffer
    int64_t missing = 0;  ///< gradients that backward has still to add
  };
  Bucket* bucket_of(const void* element, const Tensor& flat);
  void start_bucket();

  const ParameterPack* pack_;
  Ranks ranks_;
  std::unique_ptr<Communicator> communicator_;  ///< of GPUs, where the build has one
  Tensor host_;                                 ///< else the gradients, or where they are copied when they lie on a GPU
  std::vector<Bucket> buckets_;                 ///< from the end of the buffer to its beginning: the order in which all ranks start their sums
  size_t started_ = 0;
  int64_t overlapped_ = 0;
  double waited_ = 0;
  Observer* other_ = nullptr;
};

}  // namespace sinkgrad
