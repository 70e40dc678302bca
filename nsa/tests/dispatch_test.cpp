#include "nsa/dispatch.hpp"

#include <ATen/core/grad_mode.h>

#include <cmath>
#include <thread>

#include "nsa/call.hpp"
#include "nsa/tests/fixtures.hpp"

namespace nsa {
namespace {

using fixtures::distance;
using fixtures::Inputs;
using fixtures::kSmall;

Call small_call(bool training = false) {
  return {.B = 1,
          .S = 40,
          .Hq = 4,
          .G = 2,
          .Dk = 8,
          .Dv = 8,
          .geometry = kSmall,
          .precision = Precision::fp64,
          .training = training};
}

// Attention of a table over small inputs, with the blocks made by it too.
void attend_by(const Ops& table) {
  const Inputs in({.S = 40, .G = 2, .h = 2}, 1);
  const auto blocks = table.compress(in.compress());
  static_cast<void>(table.attend({in.q, blocks, in.k, in.v, in.k, in.v, in.gates, kSmall, {}}));
}

TEST(Dispatcher, RecordsWhatRan) {
  Dispatcher dispatcher(resolve({}));
  const auto all = [&] {
    std::int64_t sum = 0;
    for (const Taken& taken : dispatcher.routes_taken()) sum += taken.calls;
    return sum;
  };
  const auto count = [&](Op op, const std::string& choice) {
    std::int64_t sum = 0;
    for (const Taken& taken : dispatcher.routes_taken())
      if (taken.op == op && to_string(taken.choice) == choice) sum += taken.calls;
    return sum;
  };
  const Ops unused = dispatcher.ops(small_call());
  EXPECT_EQ(all(), 0);
  attend_by(dispatcher.ops(small_call()));
  attend_by(dispatcher.provider()(small_call()));
  attend_by(dispatcher.ops(small_call(true)));
  EXPECT_EQ(count(Op::attend_selected, "sdpa/packed"), 2);
  EXPECT_EQ(count(Op::attend_selected, "sdpa/packed_safe"), 1);
  EXPECT_EQ(count(Op::attend_window, "sdpa"), 3);
  EXPECT_EQ(count(Op::attend, "sdpa/in_parts"), 3);
  for (const Taken& taken : dispatcher.routes_taken()) {
    if (taken.op != Op::attend) continue;
    EXPECT_TRUE(taken.choice.why.starts_with("sdpa has no function for all; ")) << taken.choice.why;
  }
  EXPECT_EQ(all(), 3 * 7);
  EXPECT_TRUE(dispatcher.strict_fallbacks().empty());

  Ops replaced = dispatcher.ops(small_call());
  replaced.replace(&Ops::attend_window,
                   [inner = replaced.attend_window](const AttendWindowArgs& a) { return inner(a); });
  attend_by(replaced);
  EXPECT_EQ(count(Op::attend, "sdpa/in_parts"), 3);  // it is another one now
  EXPECT_EQ(count(Op::attend_window, "sdpa"), 4);
}

TEST(Dispatcher, RecordsTheFunctionsOfOneBackendToo) {
  Dispatcher dispatcher(resolve({}));
  attend_by(dispatcher.ops(Backend::reference));
  const auto taken = dispatcher.routes_taken();
  EXPECT_EQ(taken.size(), 7U);
  for (const Taken& each : taken) {
    EXPECT_EQ(to_string(each.choice), each.op == Op::attend ? "reference/in_parts" : "reference");
    EXPECT_EQ(each.choice.why, "this backend by itself");
    EXPECT_TRUE(each.kernels.empty());
    EXPECT_EQ(each.calls, 1);
  }
}

TEST(Dispatcher, CountsFromManyThreads) {
  Dispatcher dispatcher(resolve({}));
  const Inputs in({.S = 40, .G = 2, .h = 2}, 1);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([provider = dispatcher.provider(), &in] {
      for (int j = 0; j < 50; ++j) static_cast<void>(provider(small_call()).compress(in.compress()));
    });
  for (auto& thread : threads) thread.join();
  std::int64_t sum = 0;
  for (const Taken& taken : dispatcher.routes_taken()) sum += taken.calls;
  EXPECT_EQ(sum, 4 * 50);
}

TEST(Assemble, EveryRouteComputesTheSame) {
  const Inputs in({.S = 40, .G = 2, .h = 2}, 1);
  const auto kv = reference::compress(in.compress());
  const auto blocks = in.blocks();
  const auto wanted = reference::attend_selected(in.selected(blocks)).o;
  for (const Environment& environment : {Environment{},
                                         {{"NSA_FORCE_PARITY", "1"}},
                                         {{"NSA_FORCE_SEL_MASK", "1"}},
                                         {{"NSA_TRAIN_SAFE_PACK", "1"}},
                                         {{"NSA_USE_FA2", "1"}}}) {
    const auto flags = resolve(environment);
    const auto ops = assemble(route(flags, small_call()), flags);
    EXPECT_LE(distance(ops.attend_selected(in.selected(blocks)).o, wanted), 1e-12);
    EXPECT_LE(distance(ops.attend_window(in.window()).o, reference::attend_window(in.window()).o), 1e-12);
    EXPECT_LE(distance(ops.attend_compressed(in.compressed(kv)).o, reference::attend_compressed(in.compressed(kv)).o),
              1e-12);
    EXPECT_TRUE(at::equal(ops.select(in.select(kv)), blocks));
  }
}

TEST(Assemble, AnUnknownVariantIsALogicError) {
  auto chosen = route(resolve({}), small_call());
  chosen[Op::attend_selected].variant = RouteVariant::varlen;
  EXPECT_THROW(static_cast<void>(assemble(chosen, resolve({}))), std::logic_error);
}

TEST(Strict, TakesTheReferenceWhereAnOutputIsNotFiniteAndCounts) {
  std::map<Op, int> counted;
  Ops broken = backend_ops(Backend::sdpa);
  broken.replace(&Ops::attend_window, [](const AttendWindowArgs& args) {
    auto o = at::zeros_like(args.q);
    o[0][3].fill_(std::nan(""));
    return Attended{o, {}};
  });
  Fallback first;
  const Ops ops = strict(broken, [&](const Fallback& fallback, bool replaced) {
    EXPECT_TRUE(replaced);
    first = fallback;
    ++counted[fallback.op];
  });
  const Inputs in({.S = 40, .G = 2, .h = 2}, 2);
  EXPECT_TRUE(at::equal(ops.attend_window(in.window()).o, reference::attend_window(in.window()).o));
  static_cast<void>(
      ops.attend_compressed(in.compressed(reference::compress(in.compress()))));  // LSE or not, it is sound
  EXPECT_EQ(counted, (std::map<Op, int>{{Op::attend_window, 1}}));
  EXPECT_EQ(first.shape, (std::vector<std::int64_t>{1, 40, 4, 8}));
  EXPECT_EQ(first.index, (std::vector<std::int64_t>{0, 3, 0, 0}));
  EXPECT_TRUE(std::isnan(first.value));
}

TEST(Strict, StandsOverAChangeOfTheTable) {
  const auto silent = [](Ops table, const Call&) {
    table.replace(&Ops::combine, [](const CombineArgs& x) { return at::full_like(x.o_win, INFINITY); });
    return table;
  };
  Dispatcher strict(resolve({{"NSA_STRICT_ASSERTS", "1"}}), silent), plain(resolve({}), silent);
  attend_by(strict.ops(small_call()));
  attend_by(plain.ops(small_call()));
  EXPECT_EQ(strict.strict_fallbacks().at("combine").replaced, 1);
  EXPECT_TRUE(plain.strict_fallbacks().empty());
}

TEST(Strict, NeverHidesWhatTheReferenceAlsoFindsNotFinite) {
  Dispatcher dispatcher(resolve({{"NSA_STRICT_ASSERTS", "1"}}));
  Inputs in({.S = 40, .G = 2, .h = 2}, 3);
  in.v[0][20][1].fill_(std::nan(""));
  const auto o = dispatcher.ops(small_call()).attend_window(in.window()).o;
  EXPECT_TRUE(o[0][20][3].isnan().all().item<bool>());
  const auto fallbacks = dispatcher.strict_fallbacks();
  ASSERT_EQ(fallbacks.size(), 1U);
  EXPECT_EQ(fallbacks.at("attend_window").times, 1);
  EXPECT_EQ(fallbacks.at("attend_window").replaced, 0) << "the input was at fault";
  EXPECT_EQ(fallbacks.at("attend_window").first.shape, (std::vector<std::int64_t>{1, 40, 4, 8}));

  Dispatcher plain(resolve({}));
  EXPECT_TRUE(plain.ops(small_call()).attend_window(in.window()).o[0][20][3].isnan().all().item<bool>());
  EXPECT_TRUE(plain.strict_fallbacks().empty());
}

TEST(CallOf, ReadsTheTensors) {
  const auto q = at::zeros({2, 5, 6, 8}, at::kBFloat16);
  const auto call = call_of(q, {.G = 3, .Dv = 4, .geometry = kSmall, .packed = false, .grad = true});
  EXPECT_EQ(call.B, 2);
  EXPECT_EQ(call.S, 5);
  EXPECT_EQ(call.Hq, 6);
  EXPECT_EQ(call.G, 3);
  EXPECT_EQ(call.Dk, 8);
  EXPECT_EQ(call.Dv, 4);
  EXPECT_EQ(call.precision, Precision::bf16);
  EXPECT_FALSE(call.cuda);
  EXPECT_TRUE(call.training);
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(call_of(q, {.G = 3, .Dv = 4, .geometry = kSmall, .packed = false, .grad = true}).training);
  EXPECT_THROW(static_cast<void>(call_of(q.to(at::kLong), {})), ContractError);
}

}  // namespace
}  // namespace nsa
