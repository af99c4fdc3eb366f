// Lines along one axis, and who works on them. Contiguous lines of up to kHeldLine elements go to teams of adjacent threads, which can
// hold them in registers, so that memory is read once; strided and longer ones are swept by a block, which reads them again where it
// must. Kernels loop over lines with line_of(), the same number of times in every thread, since teams share warps.
#pragma once
#include "cuda/reduce.h"
#include "cuda/walk.h"

namespace sinkgrad::cuda {

struct Lines {
  Lines(const Shape& shape, int axis)
      : count(shape.count(0, axis) * shape.count(axis + 1, shape.rank())),
        length(shape[axis]),
        stride(shape.count(axis + 1, shape.rank())),
        across(stride) {}
  int64_t count, length, stride;
  Divisor across;
  /// Flat index of the first element of line i.
  __device__ int64_t offset(int64_t i) const { return i + (stride == 1 ? i : across.divide(i) * stride) * (length - 1); }
};

constexpr int kHeld = 8;           ///< elements of a line in the registers of one thread
constexpr int kHeldThreads = 512;  ///< most threads of a team
constexpr int kRowThreads = 256;   ///< threads of a block of smaller teams
/// Most threads of a block that sweeps: an exp in f64 takes more than the 64 registers that 1024 threads would leave.
template <class T>
constexpr int kSweepThreads = sizeof(T) == 8 ? 512 : 1024;
constexpr int64_t kHeldLine = kHeld * kHeldThreads;
/// For __launch_bounds__ of kernels that hold lines: in f32 two blocks at a time, so 64 registers. (Sweeps say 1: without a number
/// the compiler spills to reach one of its own choice.)
template <class T>
constexpr int kHeldBlocks = sizeof(T) == 4 ? 2 : 1;

/// `size` adjacent threads share a line, or the whole block does where size is 0.
template <int size>
struct Team {
  static constexpr int kSize = size;
  static constexpr bool kHolds = true;
  static constexpr int kScratch = kWarp;  ///< elements of scratch that reduce() uses
  static constexpr int kDivisor = size == 0 ? 1 : size;
  __device__ static int threads() { return size == 0 ? static_cast<int>(blockDim.x) : size; }
  __device__ static int rank() { return static_cast<int>(size == 0 ? threadIdx.x : threadIdx.x % kDivisor); }
  /// Lines that the whole grid takes in a round.
  __device__ static int64_t per_grid() { return size == 0 ? int64_t{gridDim.x} : thread_count() / kDivisor; }
  /// The line that this thread works on in the round that starts with line `begin`; it may not exist.
  __device__ static int64_t line_of(int64_t begin) { return begin + (size == 0 ? int64_t{blockIdx.x} : thread_index() / kDivisor); }
  /// The combination over the team, in each of its threads.
  template <class Op, class T>
  __device__ static T reduce(T v, Op op, const Shared<T>& scratch) {
    if constexpr (size == 0)
      return block_reduce(v, op, scratch);
    else
      return warp_reduce(v, op, size);
  }
};

/// `columns` neighbouring lines side by side, neighbouring threads on neighbouring lines: a power of two up to 32, or the whole block.
struct Sweep {
  static constexpr bool kHolds = false;
  static constexpr int kScratch = kSweepThreads<float>;
  int columns;
  __device__ int threads() const { return static_cast<int>(blockDim.x) / columns; }
  __device__ int rank() const { return static_cast<int>(threadIdx.x) / columns; }
  __device__ int64_t per_grid() const { return static_cast<int64_t>(gridDim.x) * columns; }
  __device__ int64_t line_of(int64_t begin) const {
    return begin + static_cast<int64_t>(blockIdx.x) * columns + static_cast<int>(threadIdx.x) % columns;
  }
  template <class Op, class T>
  __device__ T reduce(T v, Op op, const Shared<T>& scratch) const {
    return threads() == 1 ? v : block_reduce(v, op, scratch, columns);
  }
};

/// Most threads of a block of a Team or a Sweep.
template <class T, class Team>
constexpr int kMostThreads = Team::kHolds ? kHeldThreads : kSweepThreads<T>;

/// Calls f(team, launch) with the Team that suits contiguous lines.
template <class F>
void with_row_team(int64_t count, int64_t length, F&& f) {
  if (length <= kHeld) {
    f(Team<1>{}, grid_stride(count, kRowThreads));
  } else if (length <= 8 * kHeld) {
    f(Team<8>{}, grid_stride(count, kRowThreads, kRowThreads / 8));
  } else if (length <= kWarp * kHeld) {
    f(Team<kWarp>{}, grid_stride(count, kRowThreads, kRowThreads / kWarp));
  } else {
    const int64_t wanted = (length + kWarp * kHeld - 1) / (kWarp * kHeld) * kWarp;
    f(Team<0>{}, grid_stride(count, static_cast<int>(wanted < kHeldThreads ? wanted : kHeldThreads), 1));
  }
}

/// Calls f(team, launch) with the Sweep that suits the lines.
template <class T, class F>
void with_sweep(const Lines& lines, F&& f) {
  constexpr int threads = 256;
  const int64_t processors = multiprocessors();
  if (lines.stride > 1 && (lines.length <= kWarp || lines.count >= processors * 1024)) {
    f(Sweep{threads}, grid_stride(lines.count, threads));  // a thread per line is enough to fill the device, or all there is to do
    return;
  }
  int columns = 1;
  while (lines.stride > 1 && columns < kWarp && columns < lines.count) columns *= 2;
  const bool few = (lines.count + columns - 1) / columns < 4 * processors;
  const int block = few && lines.length * columns >= 4 * kSweepThreads<T> ? kSweepThreads<T> : threads;
  f(Sweep{columns}, grid_stride(lines.count, block, columns));
}

/// Calls f(team, launch) with a Team or a Sweep.
template <class T, class F>
void with_team(const Lines& lines, F&& f) {
  if (lines.count == 0) return;
  if (lines.stride == 1 && lines.length <= kHeldLine)
    with_row_team(lines.count, lines.length, f);
  else
    with_sweep<T>(lines, f);
}

/// The elements of a contiguous line that a thread of a team holds: packs of 16 bytes, neighbouring threads holding neighbouring ones.
/// The same elements whether or not `vectors` may move them at once, which needs aligned memory and a length in whole packs.
template <class T, class Team>
struct Row {
  static constexpr int kPack = Vector<T>::kSize;
  using Values = T[kHeld];
  int length;  ///< 0 where there is no line
  bool vectors;

  /// Where in the line held element e lies; beyond the end there is none.
  __device__ static int index(int e) { return (e / kPack * Team::threads() + Team::rank()) * kPack + e % kPack; }
  __device__ bool has(int e) const { return index(e) < length; }

  /// The held elements of the line that starts at `first`, and `otherwise` beyond its end.
  __device__ void load(Values& v, const Span<const T>& x, int64_t first, T otherwise = 0) const {
#pragma unroll
    for (int p = 0; p < kHeld; p += kPack) {
      if (vectors && has(p)) {
        const Vector<T> pack = load_vector(x, first + index(p));
#pragma unroll
        for (int c = 0; c < kPack; ++c) v[p + c] = pack.x[c];
      } else {
#pragma unroll
        for (int c = 0; c < kPack; ++c) v[p + c] = has(p + c) ? static_cast<T>(x[first + index(p + c)]) : otherwise;
      }
    }
  }
  __device__ void put(const GradSpan<T>& y, int64_t first, const Values& v) const {
#pragma unroll
    for (int p = 0; p < kHeld; p += kPack) {
      if (vectors && has(p)) {
        Vector<T> pack;
#pragma unroll
        for (int c = 0; c < kPack; ++c) pack.x[c] = v[p + c];
        put_pack(y, first + index(p), pack);
      } else {
#pragma unroll
        for (int c = 0; c < kPack; ++c)
          if (has(p + c)) y.put(first + index(p + c), v[p + c]);
      }
    }
  }
};
/// Whether rows of `length` elements may be moved in vectors.
template <class T, class... Spans>
bool rows_take_vectors(int64_t length, const Span<T>& first, const Spans&... rest) {
  return length % Vector<std::remove_const_t<T>>::kSize == 0 && aligned(first, rest...);
}

/// use(k, load(k)) for k = begin, begin + step, ... < end. 16 bytes are under way before the first use: where uses write to memory the
/// compiler cannot arrange that itself.
template <class Load, class Use>
__device__ void each_ahead(int64_t begin, int64_t end, int64_t step, const Load& load, const Use& use) {
  using Value = decltype(load(begin));
  constexpr int kAhead = sizeof(Value) < 8 ? 16 / sizeof(Value) : 2;
  int64_t k = begin;
#pragma unroll 1
  for (; k + (kAhead - 1) * step < end; k += kAhead * step) {
    Value v[kAhead];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) v[u] = load(k + u * step);
#pragma unroll
    for (int u = 0; u < kAhead; ++u) use(k + u * step, v[u]);
  }
#pragma unroll 1
  for (; k < end; k += step) use(k, load(k));
}

/// The log-sum-exp of load(k) for k = begin, begin + step, ... < end.
template <class T, class Load>
__device__ LogSum<T> log_sum_of(int64_t begin, int64_t end, int64_t step, const Load& load) {
  constexpr int kAhead = Vector<T>::kSize;  // fewer in f64, whose exp takes many registers
  LogSum<T> s;
#pragma unroll 1
  for (int64_t k = begin; k < end; k += kAhead * step) {
    T v[kAhead];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) v[u] = k + u * step < end ? static_cast<T>(load(k + u * step)) : -infinity<T>();
    s.add(v);
  }
  return s;
}
/// That of the whole team, in each of its threads.
template <class Team, class T>
__device__ LogSum<T> team_log_sum(const Team& team, const LogSum<T>& s, const Shared<T>& scratch) {
  const T top = team.reduce(s.max, Top{}, scratch);
  return {top, team.reduce(s.in_units_of(top), Sum{}, scratch)};
}

}  // namespace sinkgrad::cuda
