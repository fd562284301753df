// Formats of low-bit weights: codes, how many columns share a scale, the types of scales and offsets, and the rows that
// they are multiplied with (operand.h).
//
//   Quant<CODES, GROUP, SCALE, OFFSET, OPERAND>    weight = code * scale + offset, or (code + offset) * scale for int8_t
//     CODES    S8, S4, U4, E2M1, NL4, E4M3 (codes.h)         GROUP   columns of a row that share a scale; 0: the row
//     SCALE    float, Half, Brain                            OFFSET  None, int8_t, or SCALE
//     OPERAND  Int8<G> or Bf16
//
// Panels: PANEL output columns, as codegen/packing.py says: bytes [k/4][32][4], nibbles [k/8][32][4], E4M3 [k/2][32][2].
// Scales and offsets: [n/32][groups][32], as many groups as the padded columns have; of rows: [n].
#pragma once
#include "codes.h"
#include "operand.h"

namespace llmc {

template <class T, class U> constexpr bool SAME = false;
template <class T> constexpr bool SAME<T, T> = true;

template <class CODES, int GROUP, class SCALE, class OFFSET, class OPERAND> struct Quant {
  using Codes = CODES;
  using Scale = SCALE;
  using Offset = OFFSET;
  using Operand = OPERAND;
  static constexpr int WEIGHT_GROUP = GROUP;
  static constexpr bool HAS_OFFSETS = !SAME<OFFSET, None>, IN_STEPS = SAME<OFFSET, int8_t>;
  static_assert(!SAME<OPERAND, Bf16> || !HAS_OFFSETS || IN_STEPS, "float offsets need int8 inputs");

  static constexpr int64_t pad_k(int64_t k) { return OPERAND::pad_k(k); }
  static constexpr int64_t row_bytes(int64_t k) { return OPERAND::row_bytes(k); }
  static constexpr int64_t panel_bytes(int64_t k) { return pad_k(k) * PANEL * CODES::BITS / 8; }
  static constexpr int64_t groups(int64_t k) { return GROUP == 0 ? 1 : (pad_k(k) + GROUP - 1) / (GROUP ? GROUP : 1); }
  static const SCALE* scales(const void* all, int64_t panel, int64_t k) {
    return (const SCALE*)all + panel * groups(k) * PANEL;
  }
  static const OFFSET* offsets(const void* all, int64_t panel, int64_t k) {
    return (const OFFSET*)all + panel * groups(k) * PANEL;
  }
};

template <class F> constexpr bool IS_QUANT = false;
template <class C, int G, class S, class Z, class O> constexpr bool IS_QUANT<Quant<C, G, S, Z, O>> = true;

// Some rows times one panel or two, over all of K. BlockKernel<F, P>::run (tile_codes.h for int8 rows, widened.h for bf16
// ones) leaves the finished sums of up to ROWS rows in `out`.
struct QuantBlock {
  const uint8_t* weights;  // first panel; the second follows
  const void *scales, *offsets;
  const uint8_t* rows;
  int64_t k;
  int num_rows;
  int64_t ahead, fetch_from, fetch_to;  // bytes from a weight to the one to fetch meanwhile, for these columns
  float* out;                           // [num_rows][2 * PANEL]
};
template <class F, int P> struct BlockKernel;

// The code of column i of the input in a panel.
template <class C> LLMC_INLINE uint8_t code_at(const uint8_t* panel, int column, int i) {
  if constexpr (C::BITS == 4) return panel[(int64_t)(i / 8) * PANEL * 4 + 4 * column + i % 4] >> (i % 8 / 4 * 4) & 15;
  constexpr int PER_LANE = SAME<C, E4M3> ? 2 : 4;
  return panel[(int64_t)(i / PER_LANE) * PANEL * PER_LANE + PER_LANE * column + i % PER_LANE];
}

template <class CODES, int GROUP, class SCALE, class OFFSET, class OPERAND>
struct EmbedRow<Quant<CODES, GROUP, SCALE, OFFSET, OPERAND>> {
  using F = Quant<CODES, GROUP, SCALE, OFFSET, OPERAND>;

  LLMC_INLINE void run(const Table& t, const uint8_t* panel, int64_t n, int k, float* out) {
    const int column = (int)(n % PANEL), length = GROUP ? GROUP : k;
    const SCALE* scale = F::scales(t.scales, n / PANEL, k) + column;
    const OFFSET* offset = F::offsets(t.offsets, n / PANEL, k) + column;
    for (int begin = 0; begin < k; begin += length, scale += PANEL, offset += PANEL) {
      const float factor = load_1(scale) * CODES::VALUE_SCALE;
      float shift = 0.0f;
      if constexpr (F::HAS_OFFSETS) shift = load_1(offset);
      for (int i = begin; i < k && i < begin + length; ++i) {
        const float code = (float)CODES::value(code_at<CODES>(panel, column, i));
        out[i] = F::IN_STEPS ? (code + shift) * factor : code * factor + shift;
      }
    }
  }
};

}  // namespace llmc
