#include <tuple>

#include "nsa/ops.hpp"

#include "nsa/sdpa/sdpa.hpp"
#include "nsa/tests/fixtures.hpp"

namespace nsa {
namespace {

using fixtures::cu;
using fixtures::Inputs;
using fixtures::kSmall;
using fixtures::message_of;
using ::testing::TestWithParam;

TEST(Blocks, AreCounted) {
  const Geometry g;  // 32/16/64
  const std::vector<std::pair<std::int64_t, std::int64_t>> compressed{{1, 0},  {31, 0}, {32, 1},
                                                                      {47, 1}, {48, 2}, {2048, 127}};
  for (const auto& [S, count] : compressed) EXPECT_EQ(compressed_blocks(g, S), count) << S;
  const std::vector<std::pair<std::int64_t, std::int64_t>> selection{{1, 1}, {63, 1}, {64, 1}, {65, 2}, {2048, 32}};
  for (const auto& [S, count] : selection) EXPECT_EQ(selection_blocks(g, S), count) << S;
  EXPECT_EQ(compressed_blocks(g, cu({0, 31, 31, 63, 127}), 127), 0 + 0 + 1 + 3);
}

TEST(CuSeqlens, SoundOnesPass) {
  EXPECT_NO_THROW(check_cu_seqlens(cu({0, 0, 3, 3, 4}), 4));
  const auto found = documents(cu({0, 0, 3, 4}), 4);
  EXPECT_EQ(found, (std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 0}, {0, 3}, {3, 4}}));
  EXPECT_EQ(documents({}, 4), (std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 4}}));
}

TEST(CuSeqlens, BrokenOnesAreRefusedWithPlaceAndValue) {
  const auto refusal = [](const at::Tensor& t) { return message_of([&] { check_cu_seqlens(t, 4); }); };
  EXPECT_NE(refusal(at::Tensor()).find("undefined"), std::string::npos);
  EXPECT_NE(refusal(at::tensor({0, 4}, at::kLong)).find("Long [2]"), std::string::npos);
  EXPECT_NE(refusal(cu({0})).find("at least one document"), std::string::npos);
  EXPECT_NE(refusal(at::zeros({2, 2}, at::kInt)).find("[2, 2]"), std::string::npos);
  EXPECT_NE(refusal(cu({1, 4})).find("[0] = 1"), std::string::npos);
  EXPECT_NE(refusal(cu({0, 3, 2, 4})).find("[2] = 2 after [1] = 3"), std::string::npos);
  EXPECT_NE(refusal(cu({0, 5})).find("[1] = 5"), std::string::npos);
  EXPECT_NE(refusal(cu({0, 3})).find("the 4 tokens"), std::string::npos);
  EXPECT_NE(refusal(cu({0, 2139062143, 4})), "");  // a workspace that nobody filled
}

// Every function of every backend refuses the same, before it computes.
class Contract : public TestWithParam<Backend> {
 protected:
  Ops ops = backend_ops(GetParam());
  Inputs good{{.B = 2, .S = 20, .G = 2, .h = 2}, 1};
  Compressed kv = reference::compress(good.compress());

  static void refuses(const std::function<void()>& call, const std::string& name) {
    EXPECT_THROW(call(), ContractError) << name;
    EXPECT_NE(message_of(call).find(name), std::string::npos) << message_of(call);
  }
};

TEST_P(Contract, GoodInputsPass) {
  EXPECT_NO_THROW(ops.compress(good.compress()));
  EXPECT_NO_THROW(ops.attend_compressed(good.compressed(kv)));
  EXPECT_NO_THROW(ops.select(good.select(kv)));
  EXPECT_NO_THROW(ops.attend_selected(good.selected(good.blocks())));
  EXPECT_NO_THROW(ops.attend_window(good.window()));
  EXPECT_NO_THROW(ops.attend({good.q, kv, good.k, good.v, good.k, good.v, good.gates, kSmall, {}}));
}

TEST_P(Contract, TensorsThatDoNotFit) {
  auto bad = good;
  bad.k = good.k.to(at::kFloat);
  refuses([&] { ops.attend_window(bad.window()); }, "attend_window: k is Float");
  bad = good;
  bad.k = good.k.narrow(1, 0, 19);
  refuses([&] { ops.attend_window(bad.window()); }, "S = 20");
  bad = good;
  bad.q = good.q.narrow(2, 0, 3);
  refuses([&] { ops.attend_window(bad.window()); }, "multiple of the 2 groups");
  bad = good;
  bad.q = good.q.narrow(1, 0, 0);
  refuses([&] { ops.attend_window(bad.window()); }, "no dimension empty");
  bad = good;
  bad.v = at::Tensor();
  refuses([&] { ops.compress(bad.compress()); }, "v is undefined");
  refuses([&] { ops.attend_compressed(good.compressed({kv.k.narrow(1, 0, 3), kv.v})); }, "N_c = 9");
  refuses([&] { ops.select({good.q, kv.k.to(at::kLong), kSmall, {}}); }, "k_cmp is Long");
  refuses([&] { ops.combine({good.gates.narrow(3, 0, 2), good.q, good.q, good.q}); }, "branches = 3");
  refuses([&] { ops.combine({good.gates, good.q, good.k, good.q}); }, "o_sel");
}

TEST_P(Contract, BlockTables) {
  const auto blocks = good.blocks();
  refuses([&] { ops.attend_selected(good.selected(blocks.to(at::kLong))); }, "blocks is Long");
  refuses([&] { ops.attend_selected(good.selected(blocks.narrow(3, 0, 2))); }, "Int [2, 20, 2, 3]");
  const auto with = [&](std::int32_t a, std::int32_t b, std::int32_t c) {
    auto table = blocks.clone();
    table[1][19][1] = at::tensor({a, b, c}, at::kInt);
    return table;
  };
  for (const auto& [a, b, c] : {std::tuple{0, 1, 1}, {0, 2, 1}, {0, 1, 3}, {0, -1, 2}, {-2, 0, 1}})
    refuses([&, t = with(a, b, c)] { ops.attend_selected(good.selected(t)); }, "row of token 19, group 1");
  EXPECT_NO_THROW(ops.attend_selected(good.selected(with(-1, -1, -1))));

  // Block 1 is of the document and starts after token 7.
  auto early = blocks.clone();
  early[0][7][1] = at::tensor({0, 1, -1}, at::kInt);
  refuses([&] { ops.attend_selected(good.selected(early)); },
          "numbers up to 0, the token's own block, and then -1; row of token 7, group 1, place 1 holds 1");
}

TEST_P(Contract, HeadsBeforeTokensAreCalledSo) {
  const auto turned = [](const at::Tensor& t) { return t.transpose(1, 2).contiguous(); };
  auto bad = good;
  for (auto* t : {&bad.q, &bad.k, &bad.v}) *t = turned(*t);
  const std::string hint = "heads came before tokens";
  refuses([&] { ops.attend_window(bad.window()); }, hint);
  refuses([&] { ops.attend_selected(bad.selected(good.blocks())); }, hint);
  refuses([&] { ops.attend_compressed(bad.compressed({turned(kv.k), turned(kv.v)})); }, hint);
  refuses([&] { ops.select({bad.q, turned(kv.k), kSmall, {}}); }, hint);
  refuses([&] { ops.combine({good.gates, bad.q, bad.q, bad.q}); }, hint);
}

TEST_P(Contract, GeometryAndPacking) {
  auto bad = good;
  for (const auto& g : {Geometry{4, 3, 8, 3, 6}, Geometry{4, 2, 9, 3, 6}, Geometry{16, 2, 8, 3, 6},
                        Geometry{4, 2, 8, 2, 6}, Geometry{4, 2, 8, 3, 0}, Geometry{4, 0, 8, 3, 6}}) {
    bad.g = g;
    refuses([&] { ops.attend_window(bad.window()); }, "allowed: d divides l");
  }
  bad = good;
  bad.cu_seqlens = cu({0, 20});
  refuses([&] { ops.attend_window(bad.window()); }, "a packed batch");
  auto packed = Inputs({.S = 20}, 1);
  packed.cu_seqlens = cu({0, 21});
  refuses([&] { ops.compress(packed.compress()); }, "cu_seqlens");
  refuses([&] { ops.attend_window(packed.window()); }, "cu_seqlens");
  const auto one = reference::compress(Inputs({.S = 20}, 1).compress());
  refuses([&] { ops.attend_compressed(packed.compressed(one)); }, "cu_seqlens");
}

// `attend` refuses in its own name, and before its first part computes.
class AttendContract : public Contract {
 protected:
  AttendArgs args{good.q, kv, good.k, good.v, good.k, good.v, good.gates, kSmall, {}};
  std::vector<std::string> computed;

  void refuses(const std::function<void(AttendArgs&)>& spoil, const std::string& name) {
    AttendArgs bad = args;
    bad.observe = [&](std::string_view stage, const at::Tensor&) { computed.emplace_back(stage); };
    spoil(bad);
    Contract::refuses([&] { ops.attend(bad); }, "attend: " + name);
    EXPECT_EQ(computed, std::vector<std::string>{}) << name;
  }
};

TEST_P(AttendContract, TensorsThatDoNotFit) {
  refuses([](auto& x) { x.q = at::Tensor(); }, "q is undefined");
  refuses([](auto& x) { x.kv.v = x.kv.v.narrow(1, 0, 3); }, "v_cmp is ");
  refuses([](auto& x) { x.k_sel = x.k_sel.to(at::kFloat); }, "k_sel is Float");
  refuses([](auto& x) { x.k_win = x.k_win.narrow(1, 0, 19); }, "k_win is ");
  refuses([](auto& x) { x.v_win = at::Tensor(); }, "v_win is undefined");
  refuses([](auto& x) { x.v_win = at::cat({x.v_win, x.v_win}, 3); }, "v_win is ");
  refuses([](auto& x) { x.gates = x.gates.narrow(3, 0, 2); }, "gates is ");
  refuses([](auto& x) { x.geometry.w = 0; }, "geometry ");
}

TEST_P(AttendContract, BlockTables) {
  const auto blocks = good.blocks();
  refuses([&](auto& x) { x.blocks = blocks.to(at::kLong); }, "blocks is Long");
  auto late = blocks.clone();
  late[1][7][1] = at::tensor({0, 1, -1}, at::kInt);
  refuses([&](auto& x) { x.blocks = late; }, "blocks is Int");
  refuses(
      [&](auto& x) {
        x.blocks = late;
        x.only = ForcedBranch::sel;
      },
      "blocks is Int");
}

TEST_P(AttendContract, OffsetsOfDocuments) {
  const Inputs one({.S = 20, .G = 2, .h = 2}, 1);
  const auto of_one = reference::compress(one.compress());
  args = {one.q, of_one, one.k, one.v, one.k, one.v, one.gates, kSmall, cu({0, 21})};
  const std::string message = message_of([&] { ops.attend(args); });
  EXPECT_EQ(message.rfind("cu_seqlens: [1] = 21", 0), 0U) << message;
}

INSTANTIATE_TEST_SUITE_P(Backends, AttendContract, testing::ValuesIn(kAllBackends),
                         [](const auto& test) { return std::string(to_string(test.param)); });

TEST_P(Contract, ABranchThatRunsAloneNeedsItsOwnArgumentsOnly) {
  AttendArgs args;
  args.q = good.q;
  args.geometry = kSmall;
  args.only = ForcedBranch::win;
  args.k_win = good.k;
  args.v_win = good.v;
  EXPECT_NO_THROW(ops.attend(args));
  args.only = ForcedBranch::sel;
  args.k_sel = good.k;
  args.v_sel = good.v;
  args.blocks = good.blocks();
  EXPECT_NO_THROW(ops.attend(args));
  args.blocks.reset();
  refuses([&] { ops.attend(args); }, "attend: k_cmp is undefined");
  args.kv.k = kv.k;
  EXPECT_NO_THROW(ops.attend(args));
  args.only = ForcedBranch::cmp;
  refuses([&] { ops.attend(args); }, "attend: v_cmp is undefined");
  args.kv.v = kv.v;
  EXPECT_NO_THROW(ops.attend(args));
  args.only = ForcedBranch::none;
  refuses([&] { ops.attend(args); }, "attend: gates is undefined");
}

INSTANTIATE_TEST_SUITE_P(Backends, Contract, testing::Values(Backend::reference, Backend::sdpa),
                         [](const auto& test) { return std::string(to_string(test.param)); });

}  // namespace
}  // namespace nsa
