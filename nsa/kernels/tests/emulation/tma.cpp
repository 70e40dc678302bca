// TMA: boxes of tensors to shared memory and back; bulk copies.
#include <cuda.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "nsa/kernels/tests/emulation/cta.hpp"
#include "nsa/kernels/tests/emulation/cuda.hpp"
#include "nsa/kernels/tests/emulation/emulator.hpp"
#include "nsa/kernels/tests/emulation/launches.hpp"
#include "nsa/kernels/tests/emulation/races.hpp"

namespace nsa::kernels::emulation {
namespace {

constexpr int kRank = 5, kRowBytes = 128, kElementBytes = 2;

// ---- descriptions of tensors

// What stands in a CUtensorMap here. A dimension of one element fills up a lower rank.
struct Description {
  std::uint64_t mark;
  const char* data;
  std::uint64_t strides[kRank];  // bytes
  std::uint32_t last[kRank];     // index
  std::uint16_t box[kRank];
  bool fp16;  // else bf16
};
constexpr std::uint64_t kMark = 0x70616d20726f736e;
static_assert(sizeof(Description) <= sizeof(CUtensorMap));

// cuTensorMapEncodeTiled with the rules of its documentation. Their sentence that a stride contains the stride before
// it is none: the driver takes the dimensions in any order.
CUresult encode(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* data, const cuuint64_t* sizes,
                const cuuint64_t* strides, const cuuint32_t* box, const cuuint32_t* every,
                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion,
                CUtensorMapFloatOOBfill fill) {
  const bool two_bytes = type == CU_TENSOR_MAP_DATA_TYPE_FLOAT16 || type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  if (!two_bytes || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE || swizzle != CU_TENSOR_MAP_SWIZZLE_128B ||
      fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
    throw Error("a kind of tensor map that is not emulated");
  const auto aligned = [](const void* x, int bytes) { return reinterpret_cast<std::uintptr_t>(x) % bytes == 0; };
  if (!aligned(map, 64) || !aligned(data, 16) || rank < 1 || rank > kRank) return CUDA_ERROR_INVALID_VALUE;
  Description x{kMark, static_cast<const char*>(data), {}, {}, {}, type == CU_TENSOR_MAP_DATA_TYPE_FLOAT16};
  for (cuuint32_t i = 0; i < kRank; ++i) {
    const bool exists = i < rank;
    const cuuint64_t size = exists ? sizes[i] : 1;
    const cuuint64_t stride = i == 0 ? 0 : exists ? strides[i - 1] : 16;
    const cuuint32_t length = exists ? box[i] : 1;
    if (size < 1 || size > std::uint64_t{1} << 32 || length < 1 || length > 256 || stride % 16 != 0 ||
        stride >= std::uint64_t{1} << 40)
      return CUDA_ERROR_INVALID_VALUE;
    if (i > 0 && exists && every[i] != 1) throw Error("a tensor map with steps is not emulated");
    x.last[i] = static_cast<std::uint32_t>(size - 1);
    x.strides[i] = i == 0 ? kElementBytes : stride;
    x.box[i] = static_cast<std::uint16_t>(length);
  }
  if (x.box[0] * kElementBytes > kRowBytes) return CUDA_ERROR_INVALID_VALUE;  // the swizzle's span
  if (x.box[0] * kElementBytes < kRowBytes) throw Error("a box narrower than the swizzle is not emulated");
  std::memcpy(map, &x, sizeof x);
  return CUDA_SUCCESS;
}

// ---- boxes on their way

struct Row {              // of 128 bytes
  std::uint32_t place;    // in shared memory
  const char* data;       // the first element that is in the tensor
  std::int64_t skipped;   // elements of the row before it
  std::int64_t elements;  // of the tensor from there on

  // Where its 16 bytes from i on stand: the swizzle works on address bits.
  [[nodiscard]] std::uint32_t at(int i, bool swizzled) const {
    const std::uint32_t own = place + static_cast<std::uint32_t>(i);
    return swizzled ? own ^ (own >> 7 & 7) << 4 : own;
  }
};
struct Box {
  std::uint32_t barrier, begin, end;  // in shared memory
  std::vector<Row> rows;              // in the order in which they come, the first last
  bool swizzled = true;
  Moment asked = {};
};
std::vector<Box> boxes;
// From shared memory to floats elsewhere.
struct Bulk {
  float* to;
  std::uint32_t from;
  int bytes;
  bool add;
  unsigned thread;
  Moment asked;
};
std::vector<Bulk> bulks;
// From shared memory to a box of a tensor.
struct BoxOut {
  std::vector<Row> rows;
  bool fp16, add;
  unsigned thread;
  Moment asked;
};
std::vector<BoxOut> boxes_out;
int patience;  // turns between deliveries, more or less; 0: nothing comes before all threads wait

void deliver(const Row& row, const Box& box) {
  char line[kRowBytes] = {};
  if (row.elements > 0)
    std::memcpy(line + row.skipped * kElementBytes, row.data, static_cast<std::size_t>(row.elements * kElementBytes));
  for (int i = 0; i < kRowBytes; i += 16) {
    std::memcpy(shared_at(row.at(i, box.swizzled), 16), line + i, 16);
    std::memcpy(published_at(row.at(i, box.swizzled), 16), line + i, 16);
  }
  race_written_by(box.asked, shared_at(row.place, kRowBytes), kRowBytes);
  race_written_by(box.asked, published_at(row.place, kRowBytes), kRowBytes);
}

Description described(const void* map) {
  require(!on_a_stack(map), "a tensor map in a thread's own memory: is the parameter a __grid_constant__?");
  Description x;
  std::memcpy(&x, map, sizeof x);
  require(x.mark == kMark, "no tensor map is here");
  return x;
}
std::vector<Row> rows_of(const Description& x, const int (&corner)[5], std::uint32_t place) {
  // Columns [begin, end) of the tensor are in the box.
  const std::int64_t begin = std::max(corner[0], 0);
  const std::int64_t end = std::min<std::int64_t>(corner[0] + std::int64_t{x.box[0]}, std::int64_t{x.last[0]} + 1);
  std::vector<Row> rows;
  const int count = x.box[1] * x.box[2] * x.box[3] * x.box[4];
  for (int i = 0; i < count; ++i) {
    Row row{place + static_cast<std::uint32_t>(i) * kRowBytes, x.data + begin * kElementBytes, begin - corner[0],
            end - begin};
    for (int d = 1, rest = i; d < kRank; rest /= x.box[d++]) {
      const std::int64_t index = corner[d] + std::int64_t{rest % x.box[d]};
      if (index < 0 || index > x.last[d])
        row.elements = 0;
      else
        row.data += index * static_cast<std::int64_t>(x.strides[d]);
    }
    rows.push_back(row);
  }
  return rows;
}

// What TMA reads of shared memory since it was asked for.
void read_published(const Moment& asked, std::uint32_t from, int bytes) {
  require(std::memcmp(shared_at(from, bytes), published_at(from, bytes), static_cast<std::size_t>(bytes)) == 0,
          "TMA reads what no thread has published");
  race_read_since(asked, shared_at(from, bytes), static_cast<std::size_t>(bytes));
  race_check_written(asked, published_at(from, bytes), static_cast<std::size_t>(bytes));
}
template <typename T>
void add(char* to, const char* values, std::int64_t elements) {
  for (std::int64_t i = 0; i < elements; ++i) {
    T a, b;
    std::memcpy(&a, to + i * kElementBytes, sizeof a);
    std::memcpy(&b, values + i * kElementBytes, sizeof b);
    a = static_cast<T>(static_cast<float>(a) + static_cast<float>(b));
    std::memcpy(to + i * kElementBytes, &a, sizeof a);
  }
}
void store(const Row& row, const BoxOut& box) {
  char line[kRowBytes];
  for (int i = 0; i < kRowBytes; i += 16) std::memcpy(line + i, published_at(row.at(i, true), 16), 16);
  char* const to = const_cast<char*>(row.data);
  const char* const values = line + row.skipped * kElementBytes;
  if (!box.add)
    std::memcpy(to, values, static_cast<std::size_t>(row.elements * kElementBytes));
  else if (box.fp16)
    add<__half>(to, values, row.elements);
  else
    add<__nv_bfloat16>(to, values, row.elements);
}

// Nothing else may be on its way to where it goes, and what was there is gone.
void take_place(Box& box) {
  for (const Box& other : boxes)
    require(box.end <= other.begin || other.end <= box.begin, "a box goes where another one is on its way");
  const int bytes = static_cast<int>(box.end - box.begin);
  box.asked = race_moment();
  race_copy_starts(shared_at(box.begin, bytes), static_cast<std::size_t>(bytes));
  race_copy_starts(published_at(box.begin, bytes), static_cast<std::size_t>(bytes));
  spoil(shared_at(box.begin, bytes), bytes);
  spoil(published_at(box.begin, bytes), bytes);
}
void start(Box box) {
  for (std::size_t i = box.rows.size(); i > 1; --i) std::swap(box.rows[i - 1], box.rows[draw() % i]);
  boxes.push_back(std::move(box));
}

}  // namespace

void begin_tma() {
  boxes.clear();
  bulks.clear();
  boxes_out.clear();
  constexpr int kPatience[] = {0, 1, 8};
  patience = kPatience[draw() % 3];
}
void end_tma() {
  if (!boxes.empty()) throw Error("a CTA ends with boxes of TMA on their way");
  if (!bulks.empty() || !boxes_out.empty()) throw Error("a CTA ends with bulk copies of TMA on their way");
}

bool tma_turn(bool threads_wait) {
  if (boxes.empty()) return false;
  const std::uint64_t random = draw();
  if (!threads_wait && (patience == 0 || random % patience != 0)) return false;
  const std::size_t which = (random >> 8) % boxes.size();
  Box& box = boxes[which];
  for (std::size_t count = (random >> 32) % box.rows.size() + 1; count > 0; --count) {
    deliver(box.rows.back(), box);
    box.rows.pop_back();
    mbarrier_complete_tx(box.barrier, kRowBytes);
  }
  if (box.rows.empty()) boxes.erase(boxes.begin() + static_cast<std::ptrdiff_t>(which));
  return true;
}

void tma_load(std::uint32_t destination, const void* map, const int (&corner)[5], std::uint32_t barrier) {
  const Description x = described(map);
  require(destination % kRowBytes == 0, "a box whose destination is not aligned");
  ask_for_copy(barrier);
  std::vector<Row> rows = rows_of(x, corner, destination);
  Box box{barrier, destination, destination + static_cast<std::uint32_t>(rows.size()) * kRowBytes, {}};
  take_place(box);
  for (const Row& row : rows) {
    if (row.elements >= 8) check_inside(row.data);
    if (row.elements > 0) launch_reads(row.data, static_cast<std::size_t>(row.elements * kElementBytes));
  }
  box.rows = std::move(rows);
  start(std::move(box));
}
void bulk_load(std::uint32_t destination, const void* from, int bytes, std::uint32_t barrier) {
  require(
      bytes > 0 && bytes % kRowBytes == 0 && destination % 16 == 0 && reinterpret_cast<std::uintptr_t>(from) % 16 == 0,
      "a bulk copy that is not aligned, or not whole rows of 128 bytes, which alone are emulated");
  ask_for_copy(barrier);
  Box box{barrier, destination, destination + bytes, {}, false};
  take_place(box);
  launch_reads(from, static_cast<std::size_t>(bytes));
  for (int at = 0; at < bytes; at += kRowBytes)
    box.rows.push_back({destination + at, static_cast<const char*>(from) + at, 0, kRowBytes / kElementBytes});
  start(std::move(box));
}

void bulk_store(float* to, std::uint32_t from, int bytes, bool add) {
  require(bytes > 0 && bytes % 16 == 0 && from % 16 == 0 && reinterpret_cast<std::uintptr_t>(to) % 16 == 0,
          "a bulk copy that is not aligned");
  launch_writes(to, static_cast<std::size_t>(bytes));
  bulks.push_back({to, from, bytes, add, threadIdx.x, race_moment()});
}
void tma_store(const void* map, std::uint32_t from, const int (&corner)[5], bool add) {
  const Description x = described(map);
  require(from % kRowBytes == 0, "a box whose source is not aligned");
  BoxOut box{rows_of(x, corner, from), x.fp16, add, threadIdx.x, race_moment()};
  std::erase_if(box.rows, [](const Row& row) { return row.elements <= 0; });
  for (const Row& row : box.rows) launch_writes(row.data, static_cast<std::size_t>(row.elements * kElementBytes));
  boxes_out.push_back(std::move(box));
}
void bulk_wait() {
  const auto mine = [](const auto& x) { return x.thread == threadIdx.x; };
  for (const Bulk& x : bulks) {
    if (!mine(x)) continue;
    read_published(x.asked, x.from, x.bytes);
    const auto* values = reinterpret_cast<const float*>(published_at(x.from, x.bytes));
    for (int i = 0; i < x.bytes / 4; ++i) x.to[i] = x.add ? x.to[i] + values[i] : values[i];
  }
  for (const BoxOut& x : boxes_out) {
    if (!mine(x)) continue;
    for (const Row& row : x.rows) {
      read_published(x.asked, row.place, kRowBytes);
      store(row, x);
    }
  }
  std::erase_if(bulks, mine);
  std::erase_if(boxes_out, mine);
}

}  // namespace nsa::kernels::emulation

// How tensor_map.cpp finds the driver's function.
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  const bool known = std::string_view(symbol) == "cuTensorMapEncodeTiled";
  *function = known ? reinterpret_cast<void*>(&nsa::kernels::emulation::encode) : nullptr;
  *result = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
