// The routines of ops/update.h. Numbers that change from step to step are read from a StepState in device memory.
// Adam reads x, g, m, v and writes x, m, v once each; SGD x, g, m and x, m. The norm reads the gradients once, in chunks that do not depend
// on the GPU, and sums squares in double.
#include "cuda/reduce.h"
#include "ops/update.h"

namespace sinkgrad::cuda {
namespace {

constexpr int kThreads = 256;

/// What is constant over all updates of a run.
template <class T>
struct UpdateRule {
  T beta1, rest1, beta2, rest2, epsilon, coupled_decay;
};

/// x -= step m / (root_scale sqrt(v) + epsilon), or x -= step m, or x -= step g; x shrinks by `keep` before. A block does a chunk, 16 bytes a thread
/// at a time: chunks begin and end at multiples of 16 elements.
template <class T, bool adam>
__global__ void update_kernel(Span<T> x, Span<const T> g, Span<T> m, Span<T> v, Span<const int64_t> chunks, Span<const StepState> state,
                              UpdateRule<T> rule) {
  const StepState s = state[0];
  if (s.gradient_scale != s.gradient_scale) return;
  const int64_t chunk = 3 * static_cast<int64_t>(blockIdx.x), end = chunks[chunk + 1];
  const bool decays = chunks[chunk + 2] != 0;
  const T scale = static_cast<T>(s.gradient_scale), step = static_cast<T>(s.step), root_scale = static_cast<T>(s.root_scale);
  const T keep = decays ? static_cast<T>(s.keep) : T(1), decay = decays ? rule.coupled_decay : T(0);
  constexpr int width = Vector<T>::kSize;
  for (int64_t i = chunks[chunk] + static_cast<int64_t>(threadIdx.x) * width; i < end; i += static_cast<int64_t>(blockDim.x) * width) {
    Vector<T> xi = load_vector(x, i), mi, vi;
    const Vector<T> gi = load_vector(g, i);
    if (m) mi = load_vector(m, i);
    if constexpr (adam) vi = load_vector(v, i);
#pragma unroll
    for (int k = 0; k < width; ++k) {
      T direction = decay * xi.x[k] + scale * gi.x[k];
      if constexpr (adam) {
        mi.x[k] = rule.beta1 * mi.x[k] + rule.rest1 * direction;
        vi.x[k] = rule.beta2 * vi.x[k] + rule.rest2 * (direction * direction);
        direction = mi.x[k] / (root_scale * sqrt(vi.x[k]) + rule.epsilon);
      } else if (m) {
        mi.x[k] = direction = rule.beta1 * mi.x[k] + direction;
      }
      xi.x[k] = keep * xi.x[k] - step * direction;
    }
    store_vector(x, i, xi);
    if (m) store_vector(m, i, mi);
    if constexpr (adam) store_vector(v, i, vi);
  }
}

void update(const ValueUpdate& u) {
  dispatch(u.values.dtype, [&]<class T>() {
    const UpdateRule<T> rule{static_cast<T>(u.beta1),     static_cast<T>(1 - u.beta1), static_cast<T>(u.beta2),
                             static_cast<T>(1 - u.beta2), static_cast<T>(u.epsilon),   static_cast<T>(u.coupled_decay)};
    const auto run = [&]<bool adam>() {
      launch(KERNEL(update_kernel<T, adam>), {.blocks = u.chunks.shape[0], .threads = kThreads}, span<T>(u.values), span<const T>(u.gradients),
             span<T>(u.m), span<T>(u.v), span<const int64_t>(u.chunks), Span<const StepState>{u.state, 1}, rule);
    };
    u.v ? run.template operator()<true>() : run.template operator()<false>();
  });
}

/// partial[b] = the sum of squares of elements b kChunk .. (b + 1) kChunk - 1.
template <class T>
__global__ void square_sums(Span<const T> g, Span<double> partial) {
  STATIC_SHARED(double, scratch, kWarp);
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * ValueUpdate::kChunk;
  const int64_t end = begin + ValueUpdate::kChunk < g.count ? begin + ValueUpdate::kChunk : g.count;
  double sum = 0;
  constexpr int width = Vector<T>::kSize;
  for (int64_t i = begin + static_cast<int64_t>(threadIdx.x) * width; i < end; i += static_cast<int64_t>(blockDim.x) * width) {
    const Vector<T> gi = load_vector(g, i);
#pragma unroll
    for (int k = 0; k < width; ++k) sum += static_cast<double>(gi.x[k]) * static_cast<double>(gi.x[k]);
  }
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__device__ inline bool is_finite(double x) { return fabs(x) < infinity<double>(); }

/// One block.
__global__ void finish_norm(Span<const double> partial, Span<StepState> state) {
  STATIC_SHARED(double, scratch, kWarp);
  double sum = 0;
  for (int64_t i = threadIdx.x; i < partial.count; i += blockDim.x) sum += partial[i];
  sum = block_sum(sum, scratch);
  if (threadIdx.x != 0) return;
  StepState s = state[0];
  s.gradient_norm = sqrt(sum);
  const bool clipped = s.max_norm > 0 && s.gradient_norm + 1e-6 > s.max_norm;  // clip_scale()
  s.gradient_scale = clipped ? s.max_norm / (s.gradient_norm + 1e-6) : 1.0;
  if (!is_finite(s.gradient_norm) || !is_finite(s.loss)) s.gradient_scale = infinity<double>() - infinity<double>();
  state[0] = s;
}

void measure(const GradientNorm& g) {
  const int64_t blocks = (g.gradients.shape.count() + ValueUpdate::kChunk - 1) / ValueUpdate::kChunk;
  Scratch scratch;
  const Span<double> partial = scratch.take<double>(blocks);
  dispatch(g.gradients.dtype,
           [&]<class T>() { launch(KERNEL(square_sums<T>), {.blocks = blocks, .threads = kThreads}, span<const T>(g.gradients), partial); });
  launch(KERNEL(finish_norm), {.threads = kThreads}, partial, Span<StepState>{g.state, 1});
}

/// hits[b] = whether the largest logit of row b is that of its label. A warp does a row.
template <class T>
__global__ void find_hits(Span<const T> logits, Span<const int32_t> labels, Span<int32_t> hits, int64_t classes) {
  for (int64_t row = thread_index() / kWarp; row < labels.count; row += thread_count() / kWarp) {
    const int64_t label = labels[row], first = row * classes;
    bool beaten = label < 0 || label >= classes;
    if (!beaten) {
      const T own = logits[first + label];
      beaten = own != own;
      for (int64_t c = lane_index(); c < classes; c += kWarp) {
        const T other = logits[first + c];
        beaten |= c != label && other >= own;
      }
    }
    beaten = warp_any(beaten);
    if (lane_index() == 0) hits[row] = beaten ? 0 : 1;
  }
}

/// One block.
template <class T>
__global__ void add_score(Span<const int32_t> hits, Span<const T> loss, double weight, bool add, Span<StepState> state) {
  STATIC_SHARED(int64_t, scratch, kWarp);
  int64_t correct = 0;
  for (int64_t i = threadIdx.x; i < hits.count; i += blockDim.x) correct += hits[i];
  correct = block_sum(correct, scratch);
  if (threadIdx.x != 0) return;
  StepState s = state[0];
  s.loss = (add ? s.loss : 0.0) + weight * static_cast<double>(static_cast<T>(loss[0]));
  s.correct = (add ? s.correct : 0) + correct;
  state[0] = s;
}

void score(const BatchScore& b) {
  const int64_t rows = b.labels.shape[0];
  Scratch scratch;
  const Span<int32_t> hits = scratch.take<int32_t>(rows);
  dispatch(b.loss.dtype, [&]<class T>() {
    launch(KERNEL(find_hits<T>), grid_stride(rows, kThreads, kThreads / kWarp), span<const T>(b.logits), span<const int32_t>(b.labels), hits,
           b.logits.shape[1]);
    launch(KERNEL(add_score<T>), {.threads = kThreads}, hits, span<const T>(b.loss), b.weight, b.add, Span<StepState>{b.state, 1});
  });
}

template <class T>
__global__ void move_statistics(Span<T> mean, Span<T> variance, Span<const T> batch_mean, Span<const T> batch_variance, double momentum,
                                double unbiased) {
  for (int64_t c = thread_index(); c < mean.count; c += thread_count()) {
    const T m = mean[c], v = variance[c], to_m = batch_mean[c], to_v = batch_variance[c];
    mean[c] = m + static_cast<T>(momentum * (static_cast<double>(to_m) - static_cast<double>(m)));
    variance[c] = v + static_cast<T>(momentum * (unbiased * static_cast<double>(to_v) - static_cast<double>(v)));
  }
}

void move(const RunningStatistics& r) {
  const auto n = static_cast<double>(r.count);
  dispatch(r.mean.dtype, [&]<class T>() {
    launch(KERNEL(move_statistics<T>), grid_stride(r.mean.shape.count()), span<T>(r.mean), span<T>(r.variance), span<const T>(r.batch_mean),
           span<const T>(r.batch_variance), r.momentum, n / (n - 1));
  });
}

[[maybe_unused]] const bool registered = register_cuda_routine(update_values, update) && register_cuda_routine(measure_gradient, measure) &&
                                         register_cuda_routine(score_batch, score) && register_cuda_routine(update_running_statistics, move);

}  // namespace
}  // namespace sinkgrad::cuda
