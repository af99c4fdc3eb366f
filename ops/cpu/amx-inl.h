// Products of bf16 in AMX tiles: 16 x 16 sums of f32, to which an instruction adds 16 x 32 times 32 x 16. For one instruction set.
#if defined(SINKGRAD_AMX_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef SINKGRAD_AMX_INL
#undef SINKGRAD_AMX_INL
#else
#define SINKGRAD_AMX_INL
#endif

#include "ops/cpu/operand-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sinkgrad::cpu::HWY_NAMESPACE {

/// Makes the tiles of the calling thread usable where products of U need them, until the scope ends: about 0.1 us, so once for many products.
/// No library may be called meanwhile, it could use tiles of its own.
template <class U>
class TileScope {
 public:
  TileScope() {
    if constexpr (kTiled<U>) {
      struct Shapes {
        uint8_t palette = 1, start_row = 0, reserved[14] = {};
        uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
        uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
      };
      alignas(64) static constexpr Shapes kShapes;
      static_assert(sizeof(Shapes) == 64);
      asm volatile("ldtilecfg %0" : : "m"(kShapes));
    }
  }
  ~TileScope() {
    if constexpr (kTiled<U>) asm volatile("tilerelease");
  }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
};

// The compiler's own intrinsics need options that Highway's targets do not set. Strides are in bytes.
template <int tile>
HWY_INLINE void ZeroTile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(tile));
}
template <int tile>
HWY_INLINE void LoadTile(const void* from, int64_t stride) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" : : "i"(tile), "r"(from), "r"(stride) : "memory");
}
template <int tile>
HWY_INLINE void StoreTile16(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" : : "i"(tile), "r"(to), "r"(stride) : "memory");
}
template <int to, int left, int right>
HWY_INLINE void DotTiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(to), "i"(left), "i"(right));
}

/// A place of f32 in memory: rows `row` numbers apart; 0 repeats one row.
template <class T>
struct Place {
  T* at;
  int64_t row;
};

/// to = from + left right for R x W tiles. `left` (16 R rows, depth) in tiles, rows `left_row` elements apart where they are a tile's first; `right`
/// (depth, 16 W) in a panel. from.at may be null: zeros.
template <int R, int W>
HWY_INLINE void TileBlock(const TiledBf16Pair* left, int64_t left_row, const TiledBf16Pair* right, int64_t depth, Place<const float> from,
                          Place<float> to) {
  constexpr int64_t kBytes = 64, kPanelBytes = 128;
  constexpr int kLeft = 4, kRight = 6;  // the first tiles of each; sums lie in tiles 0 .. 3
  auto sums = [&](auto f) HWY_ATTR {
    f.template operator()<0, 0, 0>();
    if constexpr (W > 1) f.template operator()<1, 0, 1>();
    if constexpr (R > 1) f.template operator()<2, 1, 0>();
    if constexpr (R > 1 && W > 1) f.template operator()<3, 1, 1>();
  };
  if (from.at)
    sums([&]<int tile, int r, int w>() HWY_ATTR { LoadTile<tile>(from.at + r * kTileSide * from.row + w * kTileSide, from.row * 4); });
  else
    sums([&]<int tile, int r, int w>() HWY_ATTR { ZeroTile<tile>(); });
  for (int64_t k = 0; k < depth; k += kTileSide) {
    LoadTile<kRight>(right + k * 2 * kTileSide, kPanelBytes);
    if constexpr (W > 1) LoadTile<kRight + 1>(right + k * 2 * kTileSide + kTileSide, kPanelBytes);
    LoadTile<kLeft>(left + k * kTileSide, kBytes);
    if constexpr (R > 1) LoadTile<kLeft + 1>(left + kTileSide * left_row + k * kTileSide, kBytes);
    sums([&]<int tile, int r, int w>() HWY_ATTR { DotTiles<tile, kLeft + r, kRight + w>(); });
  }
  sums([&]<int tile, int r, int w>() HWY_ATTR { StoreTile16<tile>(to.at + r * kTileSide * to.row + w * kTileSide, to.row * 4); });
}

/// f.operator()<R, W>() with the tiles, one or two each way, that so many rows and columns of a block take.
template <class F>
HWY_INLINE void in_tiles(int64_t rows, int64_t columns, const F& f) {
  if (rows > kTileSide)
    columns > kTileSide ? f.template operator()<2, 2>() : f.template operator()<2, 1>();
  else
    columns > kTileSide ? f.template operator()<1, 2>() : f.template operator()<1, 1>();
}

}  // namespace sinkgrad::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
