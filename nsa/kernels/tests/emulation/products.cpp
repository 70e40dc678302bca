// The matrix products of emulator.hpp.
#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "nsa/kernels/tests/emulation/cta.hpp"
#include "nsa/kernels/tests/emulation/cuda.hpp"
#include "nsa/kernels/tests/emulation/emulator.hpp"
#include "nsa/kernels/tests/emulation/races.hpp"

namespace nsa::kernels::emulation {

namespace {

// A product of a warp that is on its way: 16 rows of the warpgroup's 64.
struct Running {
  int group, columns;
  Operands operands;
  std::uint64_t a, b;
  const std::uint32_t* registers[32];      // a's, of each lane
  float* c;                                // lane 0's
  std::vector<std::uint16_t> left, right;  // as they were at the start
  bool accumulate;
  Wide wide;
  Moment start;
  [[nodiscard]] bool sums_rows_of_right() const { return operands != Operands::columns; }
};
struct Accumulator {
  int columns, users = 0;
  float* lanes[32];
  std::vector<float> sum;  // [16][columns]
};
struct WarpProducts {
  bool fenced = false;
  int group = 0;  // that the next product belongs to
  std::size_t started = 0;
  std::vector<Running> running;
  std::map<float*, Accumulator> accumulators;  // of running products
};
struct Started {  // by a warp of a warpgroup; the others must start the same
  std::uint64_t a, b;
  int columns;
};

std::vector<WarpProducts> warps;
std::vector<std::vector<Started>> warpgroups;

WarpProducts& own_warp() { return warps[threadIdx.x / 32]; }

// ---- operands of wgmma

int field(std::uint64_t operand, int bit) { return static_cast<int>(operand >> bit & 0x3fff) << 4; }

// Where eight neighbours of an operand [rows or columns i][summed k] lie, from element (i, k) on, along its 128 bytes:
// along k, or, `transposed`, along i.
std::uint32_t eight_at(std::uint64_t operand, bool transposed, int i, int k) {
  const int leading = field(operand, 16), stride = field(operand, 32);
  const int plain = field(operand, 0) + (transposed ? i / 64 * leading + i % 64 * 2 + k / 8 * stride + k % 8 * 128
                                                    : i / 8 * stride + i % 8 * 128 + k * 2);
  return static_cast<std::uint32_t>(plain ^ (plain >> 7 & 7) << 4);  // the swizzle works on address bits
}
void read_eight(std::uint16_t* to, std::uint32_t at) {
  std::memcpy(to, shared_at(at, 16), 16);
  if (std::memcmp(to, published_at(at, 16), 16) != 0) fail("a product reads what no thread has published");
}
// Calls each(address, place in right_of's answer) for every eight of the right operand.
template <typename Each>
void for_right(const Running& x, Each&& each) {
  if (x.sums_rows_of_right()) {
    for (int k = 0; k < 16; ++k)
      for (int n = 0; n < x.columns; n += 8) each(eight_at(x.b, true, n, k), k * x.columns + n);
  } else {
    for (int n = 0; n < x.columns; ++n)
      for (int k = 0; k < 16; k += 8) each(eight_at(x.b, false, n, k), n * 16 + k);
  }
}
// Calls each(address, first row, k) for every eight of `rows` rows of a left operand in shared memory: neighbours in k,
// or rows where these are summed over.
template <typename Each>
void for_left(const Running& x, int first_row, int rows, Each&& each) {
  const bool of_rows = x.operands == Operands::rows;
  for (int row = 0; row < rows; row += of_rows ? 8 : 1)
    for (int k = 0; k < 16; k += of_rows ? 1 : 8) each(eight_at(x.a, of_rows, first_row + row, k), row, k);
}
std::vector<std::uint16_t> left_of(const Running& x) {
  std::vector<std::uint16_t> left(16 * 16);
  if (x.operands == Operands::registers) {
    for (int row = 0; row < 16; ++row)
      for (int k = 0; k < 16; ++k) {
        const std::uint32_t both = x.registers[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2];
        left[row * 16 + k] = static_cast<std::uint16_t>(both >> k % 2 * 16);
      }
    return left;
  }
  for_left(x, static_cast<int>(threadIdx.x / 32 % 4 * 16), 16, [&](std::uint32_t at, int row, int k) {
    std::uint16_t eight[8];
    read_eight(eight, at);
    for (int i = 0; i < 8; ++i) left[x.operands == Operands::rows ? (row + i) * 16 + k : row * 16 + k + i] = eight[i];
  });
  return left;
}
std::vector<std::uint16_t> right_of(const Running& x) {  // sums_rows_of_right: [16][columns], else [columns][16]
  std::vector<std::uint16_t> right(16 * x.columns);
  for_right(x, [&](std::uint32_t at, int place) { read_eight(&right[place], at); });
  return right;
}
// A product is the warpgroup's: which of its warps reads which rows nobody promises, so each of them reads all.
void note_reads(const Running& x) {
  const auto note = [&](std::uint32_t at, int) {
    race_read_since(x.start, shared_at(at, 16), 16);
    race_check_written(x.start, published_at(at, 16), 16);
  };
  for_right(x, note);
  if (x.operands == Operands::registers) return;
  for_left(x, 0, 64, [&](std::uint32_t at, int, int) { note(at, 0); });
}
void check_operand(std::uint64_t operand) {
  require(operand >> 62 == 1, "an operand without the swizzle of 128 bytes");
  require((operand >> 49 & 7) == 0, "an operand with a base offset");
}

// The place of a lane's value i in the warp's 16 rows.
int place_of(int lane, int i, int columns) {
  return (lane / 4 + i % 4 / 2 * 8) * columns + i / 4 * 8 + lane % 4 * 2 + i % 2;
}
bool untouched(const Accumulator& x) {
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < x.columns / 2; ++i)
      if (std::memcmp(&x.lanes[lane][i], &kRubbish, 4) != 0) return false;
  return true;
}

struct ProductLane {
  float* c;
  Operands operands;
  const std::uint32_t* registers;
  std::uint64_t a, b;
  int columns;
  bool accumulate;
  Wide wide;
};
void start_for_warp(ProductLane* const* lanes) {
  const ProductLane& x = *lanes[0];
  WarpProducts& warp = own_warp();
  Running product{warp.group, x.columns, x.operands, x.a, x.b, {}, x.c, {}, {}, x.accumulate, x.wide, race_moment()};
  product.start.warp = true;
  for (int i = 0; i < 32; ++i) {
    const ProductLane& own = *lanes[i];
    if (own.a != x.a || own.b != x.b) fail("lanes of a warp name different operands");
    product.registers[i] = own.registers;
  }
  if (x.operands != Operands::registers) check_operand(x.a);
  check_operand(x.b);
  auto& started = warpgroups[threadIdx.x / 128];
  if (warp.started == started.size()) started.push_back({x.a, x.b, x.columns});
  const Started& same = started[warp.started++];
  require(same.a == x.a && same.b == x.b && same.columns == x.columns, "warps of a warpgroup start different products");
  product.left = left_of(product);
  product.right = right_of(product);

  const auto [at, is_new] = warp.accumulators.try_emplace(x.c);
  Accumulator& sum = at->second;
  if (is_new) {
    require(warp.fenced, "a product starts without wgmma_fence after registers may have changed");
    sum.columns = x.columns;
    sum.sum.resize(16 * x.columns);
    for (int lane = 0; lane < 32; ++lane) {
      sum.lanes[lane] = lanes[lane]->c;
      for (int i = 0; i < x.columns / 2; ++i) {
        if (x.accumulate) sum.sum[place_of(lane, i, x.columns)] = lanes[lane]->c[i];
        std::memcpy(&lanes[lane]->c[i], &kRubbish, 4);
      }
    }
  }
  require(sum.columns == x.columns && untouched(sum), "an accumulator changed while a product runs");
  ++sum.users;
  warp.running.push_back(std::move(product));
}

void finish(const Running& x, Accumulator& sum) {
  if (left_of(x) != x.left || right_of(x) != x.right) fail("an operand changed while a product runs");
  if (!races_have_clocks() || draw() % 4 == 0) note_reads(x);  // or a test of pipelines would take twice as long
  std::vector<float> right(x.right.size());                    // [16][columns]
  for (int k = 0; k < 16; ++k)
    for (int n = 0; n < x.columns; ++n)
      right[k * x.columns + n] = x.wide(x.right[x.sums_rows_of_right() ? k * x.columns + n : n * 16 + k]);
  if (!x.accumulate) std::fill(sum.sum.begin(), sum.sum.end(), 0.f);
  for (int row = 0; row < 16; ++row) {
    float* const to = &sum.sum[row * x.columns];
    for (int k = 0; k < 16; ++k) {
      const float factor = x.wide(x.left[row * 16 + k]);
      const float* const from = &right[k * x.columns];
      for (int n = 0; n < x.columns; ++n) to[n] += factor * from[n];
    }
  }
}
void finish_for_warp(int pending) {
  WarpProducts& warp = own_warp();
  std::size_t done = 0;
  while (done < warp.running.size() && warp.running[done].group < warp.group - pending) {
    const Running& x = warp.running[done++];
    Accumulator& sum = warp.accumulators.at(x.c);
    require(untouched(sum), "an accumulator changed while a product runs");
    finish(x, sum);
    if (--sum.users > 0) continue;
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < sum.columns / 2; ++i) sum.lanes[lane][i] = sum.sum[place_of(lane, i, sum.columns)];
    warp.accumulators.erase(x.c);
  }
  if (done > 0) warp.fenced = false;
  warp.running.erase(warp.running.begin(), warp.running.begin() + static_cast<std::ptrdiff_t>(done));
}

}  // namespace

void begin_products(int threads) {
  warps.assign((threads + 31) / 32, WarpProducts());
  warpgroups.assign((threads + 127) / 128, {});
}
void end_products() {
  for (const WarpProducts& warp : warps)
    if (!warp.running.empty()) throw Error("a warp ends with products on their way");
}

void ldmatrix(std::uint32_t (&r)[4], std::uint32_t address, bool transposed) {
  struct Lane {
    std::uint32_t address;
    bool transposed;
    std::uint32_t* r;
  } own{address, transposed, r};
  together("ldmatrix", own, [](Lane* const* lanes) {
    for (int matrix = 0; matrix < 4; ++matrix) {
      std::uint16_t x[8][8];
      for (int row = 0; row < 8; ++row) {
        const std::uint32_t at = lanes[8 * matrix + row]->address;
        require(at % 16 == 0, "ldmatrix of an address that is not aligned");
        std::memcpy(x[row], shared_at(at, 16), 16);
        race_read_of_lane(8 * matrix + row, shared_at(at, 16), 16);
      }
      for (int lane = 0; lane < 32; ++lane) {
        const int g = lane / 4, i = lane % 4 * 2;
        const std::uint32_t low = lanes[0]->transposed ? x[i][g] : x[g][i];
        const std::uint32_t high = lanes[0]->transposed ? x[i + 1][g] : x[g][i + 1];
        lanes[lane]->r[matrix] = low | high << 16;
      }
    }
  });
}

void mma(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1, Wide wide) {
  struct Lane {
    float* c;
    const std::uint32_t* a;
    std::uint32_t b[2];
    Wide wide;
  } own{c, a, {b0, b1}, wide};
  together("mma.sync", own, [](Lane* const* lanes) {
    const auto value = [&](std::uint32_t both, int k) {
      return lanes[0]->wide(static_cast<std::uint16_t>(both >> k % 2 * 16));
    };
    float left[16][16], right[16][8];
    for (int k = 0; k < 16; ++k) {
      for (int row = 0; row < 16; ++row)
        left[row][k] = value(lanes[row % 8 * 4 + k % 8 / 2]->a[row / 8 + k / 8 * 2], k);
      for (int n = 0; n < 8; ++n) right[k][n] = value(lanes[n * 4 + k % 8 / 2]->b[k / 8], k);
    }
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + i / 2 * 8, n = lane % 4 * 2 + i % 2;
        float sum = 0;
        for (int k = 0; k < 16; ++k) sum += left[row][k] * right[k][n];
        lanes[lane]->c[i] += sum;
      }
  });
}

uint4 row_of_matrices(const std::uint32_t (&r)[4]) {
  struct Lane {
    const std::uint32_t* r;
    std::uint32_t row[4];
  } own{r, {}};
  together("stmatrix", own, [](Lane* const* lanes) {
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < 4; ++i) lanes[lane]->row[i] = lanes[lane % 8 * 4 + i]->r[lane / 8];
  });
  return {own.row[0], own.row[1], own.row[2], own.row[3]};
}

void start_product(float* c, int columns, bool accumulate, Operands operands, const std::uint32_t* registers,
                   std::uint64_t a, std::uint64_t b, Wide wide) {
  ProductLane own{c, operands, registers, a, b, columns, accumulate, wide};
  together("wgmma", own, [](ProductLane* const* lanes) { start_for_warp(lanes); });
}
void wgmma_fence() {
  warp_barrier("wgmma.fence", nullptr, [](void* const*) { own_warp().fenced = true; });
}
void wgmma_commit() {
  warp_barrier("wgmma.commit_group", nullptr, [](void* const*) { ++own_warp().group; });
}
void wgmma_wait(int pending) {
  struct Lane {
    int pending;
  } own{pending};
  together("wgmma.wait_group", own, [](Lane* const* lanes) { finish_for_warp(lanes[0]->pending); });
}

}  // namespace nsa::kernels::emulation
