// sdpa/selected.cpp: what the ways to the chosen blocks read, write and hold.
#include <ATen/record_function.h>

#include <cmath>

#include "nsa/route.hpp"
#include "nsa/sdpa/sdpa.hpp"
#include "nsa/tests/fixtures.hpp"

namespace nsa::sdpa {
namespace {

using fixtures::Inputs;

// ---- padding ------------------------------------------------------------------------------------------------------

TEST(SdpaGather, ReadsNothingThatAQueryMustNotSee) {
  // Block 0 is NaN and nobody chose it; token 21 and later are NaN and token 20 must not see them.
  Inputs in({.B = 1, .S = 24, .G = 1, .h = 2}, 7);
  for (auto* t : {&in.k, &in.v}) {
    t->narrow(1, 0, 8).fill_(std::nan(""));
    t->narrow(1, 21, 3).fill_(std::nan(""));
  }
  auto blocks = at::full({1, 24, 1, 3}, -1, at::kInt);  // of tokens 0 to 7: nothing
  blocks.slice(1, 8).select(3, 0).fill_(1);
  blocks.slice(1, 16).select(3, 1).fill_(2);
  for (const auto how : {Selection::packed, Selection::packed_safe}) {
    const auto o = attend_selected(in.selected(blocks), how).o;
    EXPECT_TRUE(o[0].narrow(0, 0, 21).isfinite().all().item<bool>());
    EXPECT_TRUE(o[0][21].isnan().any().item<bool>());
  }
}

// ---- memory and workspaces ------------------------------------------------------------------------------------------

// What an ATen op received while `body` ran: the data pointer and the storage's bytes of one argument.
struct Seen {
  const void* data;
  std::size_t bytes;
};
thread_local std::vector<Seen>* seen_by_callback = nullptr;
thread_local std::pair<std::string, std::size_t> watched;

std::vector<Seen> watch(const std::string& op, std::size_t argument, const std::function<void()>& body) {
  std::vector<Seen> seen;
  seen_by_callback = &seen;
  watched = {op, argument};
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& fn) -> std::unique_ptr<at::ObserverContext> {
        if (watched.first == fn.name() && fn.inputs().size() > watched.second &&
            fn.inputs()[watched.second].isTensor()) {
          const auto& t = fn.inputs()[watched.second].toTensor();
          seen_by_callback->push_back({t.const_data_ptr(), t.storage().nbytes()});
        }
        return nullptr;
      }).needsInputs(true));
  body();
  at::removeCallback(handle);
  return seen;
}

TEST(SdpaWorkspace, IsTheSameMemoryEveryTimeAndNoResultLivesInIt) {
  const at::NoGradGuard no_grad;
  const Inputs in({.S = 64, .h = 2}, 59), other({.S = 64, .h = 2}, 61);
  const auto blocks = in.blocks();
  at::Tensor first, second;
  const auto seen = watch("aten::index_select", 3, [&] {
    first = attend_selected(in.selected(blocks), Selection::packed).o;
    second = attend_selected(other.selected(blocks), Selection::packed).o;
  });
  ASSERT_EQ(seen.size(), 4u);  // K and V, twice
  EXPECT_EQ(seen[0].data, seen[2].data);
  EXPECT_EQ(seen[1].data, seen[3].data);
  EXPECT_NE(seen[0].data, seen[1].data);
  EXPECT_TRUE(at::equal(first, attend_selected(in.selected(blocks), Selection::packed_safe).o));
  EXPECT_TRUE(at::equal(second, attend_selected(other.selected(blocks), Selection::packed_safe).o));
}

TEST(SdpaWorkspace, GrowsShrinksAndChangesType) {
  const at::NoGradGuard no_grad;
  for (const auto& [S, type] :
       {std::pair{8L, at::kFloat}, {200L, at::kFloat}, {16L, at::kFloat}, {50L, at::kDouble}, {9L, at::kBFloat16}}) {
    const Inputs in({.S = S, .G = 2}, 67, type);
    const auto blocks = in.blocks();
    EXPECT_TRUE(at::equal(attend_selected(in.selected(blocks), Selection::packed).o,
                          attend_selected(in.selected(blocks), Selection::packed_safe).o));
  }
}

TEST(SdpaWorkspace, IsRefusedWithGradients) {
  Inputs in({.S = 20}, 71);
  const auto blocks = in.blocks();
  in.require_gradients();
  EXPECT_THROW(static_cast<void>(attend_selected(in.selected(blocks), Selection::packed)), ContractError);
  const at::NoGradGuard no_grad;
  EXPECT_NO_THROW(static_cast<void>(attend_selected(in.selected(blocks), Selection::packed)));
}

TEST(SdpaMemory, KeysAreNeverExpandedToQueryHeads) {
  const at::NoGradGuard no_grad;
  const std::int64_t S = 96;
  const Inputs in({.S = S, .G = 2, .h = 6}, 73, at::kFloat);
  const auto blocks = in.blocks();
  const auto kv = compress(in.compress());
  const std::size_t plain = in.k.nbytes();
  for (const std::size_t argument : {1, 2}) {  // K, V
    for (const auto& s : watch("aten::scaled_dot_product_attention", argument, [&] {
           static_cast<void>(attend_window(in.window()));
           static_cast<void>(attend_compressed(in.compressed(kv)));
           static_cast<void>(attend_selected(in.selected(blocks), Selection::masked));
         }))
      EXPECT_LE(s.bytes, plain);
  }
  // And ATen takes its fused kernel, which does not expand them either.
  EXPECT_EQ(watch("aten::_scaled_dot_product_attention_math", 1, [&] { static_cast<void>(attend_window(in.window())); })
                .size(),
            0u);
}

TEST(SdpaMask, ChunksOfQueriesChangeNothing) {
  for (const auto& [S, mask_elements] : {std::pair{100L, 33 * 100L}, {100L, 1L}, {64L, 32 * 64L}, {50L, 49 * 50L}}) {
    Inputs in({.B = 2, .S = S, .G = 2, .h = 3, .Dv = 4}, 83);
    auto blocks = in.blocks();
    for (const std::int64_t t : {std::int64_t{0}, std::int64_t{33}, S - 1}) blocks.select(1, t).fill_(-1);
    in.require_gradients();
    const auto whole = attend_selected(in.selected(blocks), Selection::masked).o;
    const auto chunks = attend_selected(in.selected(blocks), Selection::masked, mask_elements).o;
    EXPECT_LE(fixtures::distance(chunks, whole), 1e-14) << S;
    const auto wanted = fixtures::gradients(whole, in, 89), got = fixtures::gradients(chunks, in, 89);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_LE(fixtures::distance(got[i], wanted[i]), 1e-14) << S << ", input " << i;
  }
}

TEST(SdpaMask, NoLaunchHasALargerOneThanAllowed) {
  const at::NoGradGuard no_grad;
  const Inputs in({.B = 2, .S = 100, .G = 2, .h = 3}, 97, at::kFloat);
  const auto blocks = in.blocks();
  const auto seen = watch("aten::scaled_dot_product_attention", 3, [&] {
    static_cast<void>(attend_selected(in.selected(blocks), Selection::masked, 33 * 100 + 99));
  });
  ASSERT_EQ(seen.size(), 4u);
  // 33 queries (the last one alone) against the keys up to their end, for two sequences of two groups.
  const std::size_t wanted[] = {33 * 33, 33 * 66, 33 * 99, 1 * 100};
  for (std::size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i].bytes, 4 * wanted[i]) << i;
}

TEST(SdpaMemory, GatheringGoesInBoundedChunks) {
  const at::NoGradGuard no_grad;
  const Inputs in({.B = 2, .S = kGatherChunkRows / 2 + 3, .Dk = 4, .Dv = 4}, 79, at::kFloat, {2, 1, 2, 3, 4});
  const auto blocks = in.blocks();
  const auto seen = watch("aten::scaled_dot_product_attention", 1,
                          [&] { static_cast<void>(attend_selected(in.selected(blocks), Selection::packed)); });
  EXPECT_EQ(seen.size(), 2u);
  EXPECT_TRUE(at::equal(attend_selected(in.selected(blocks), Selection::packed).o,
                        attend_selected(in.selected(blocks), Selection::packed_safe).o));
}

}  // namespace
}  // namespace nsa::sdpa
