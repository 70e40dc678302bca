#include "nsa/decode/decoder.hpp"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "nsa/tests/model_fixtures.hpp"

namespace nsa::decode {
namespace {

using fixtures::bytes;
using fixtures::distance;
using fixtures::kSmall;
using fixtures::make_model;
using fixtures::message_of;
using fixtures::random;
using fixtures::tiny;

// ---- the caches ---------------------------------------------------------------------------------------------------

at::Tensor numbered(std::int64_t first, std::int64_t count) {  // [2,count,3,4], every row filled with its number
  return at::arange(first, first + count, at::kDouble).view({1, count, 1, 1}).expand({2, count, 3, 4});
}
std::vector<std::int64_t> numbers(const at::Tensor& rows) {
  const auto first = rows.select(0, 0).select(0, 0).select(1, 0).to(at::kLong).contiguous();
  return {first.data_ptr<std::int64_t>(), first.data_ptr<std::int64_t>() + first.numel()};
}

TEST(Stream, KeepsEverythingAndDoublesItsRoom) {
  Stream stream(Stream::kUnlimited, 8);
  EXPECT_FALSE(stream.rows().defined());
  std::int64_t grown = 0, bytes = 0;
  for (std::int64_t i = 0; i < 1000; ++i) {
    stream.append(numbered(i, 1));
    grown += stream.bytes() != bytes;
    bytes = stream.bytes();
    ASSERT_LE(bytes, 2 * (i + 64) * 2 * 3 * 4 * 8);
  }
  EXPECT_LE(grown, 5);  // 64, 128, 256, 512, 1024
  std::vector<std::int64_t> wanted(1000);
  std::iota(wanted.begin(), wanted.end(), 0);
  EXPECT_EQ(numbers(stream.rows()), wanted);
  EXPECT_EQ(numbers(stream.last(2)), (std::vector<std::int64_t>{998, 999}));
}

TEST(Stream, ARingKeepsTheLastRowsHoweverTheyCome) {
  for (const std::int64_t limit : {1, 5, 64, 70}) {
    for (const std::int64_t step : {1, 3, 5, 7, 200}) {
      Stream ring(limit);
      for (std::int64_t i = 0; i < 400; i += step) {
        ring.append(numbered(i, step));
        const std::int64_t seen = i + step, kept = std::min(seen, limit);
        ASSERT_EQ(ring.seen(), seen);
        std::vector<std::int64_t> wanted(static_cast<std::size_t>(kept));
        std::iota(wanted.begin(), wanted.end(), seen - kept);
        ASSERT_EQ(numbers(ring.last(kept)), wanted) << limit << " " << step << " " << i;
        auto held = numbers(ring.rows());
        std::sort(held.begin(), held.end());
        ASSERT_EQ(held, wanted);
      }
      EXPECT_LE(ring.bytes(), limit * 2 * 3 * 4 * 8);
    }
  }
}

TEST(Stream, RefusesRowsThatDoNotFit) {
  Stream stream;
  stream.append(numbered(0, 2));
  EXPECT_NE(message_of([&] { stream.append(at::zeros({1, 1, 3, 4}, at::kDouble)); }).find("B 2"), std::string::npos);
  EXPECT_NE(message_of([&] { stream.append(at::zeros({2, 1, 3, 4})); }).find("Double on cpu"), std::string::npos);
  EXPECT_NE(message_of([&] { stream.append(at::zeros({2, 3, 4})); }).find("[B,T,G,D]"), std::string::npos);
  EXPECT_THROW(static_cast<void>(stream.last(3)), std::logic_error);
}

// ---- one query ----------------------------------------------------------------------------------------------------

// The last query of a whole pass is what a step must compute.
TEST(Step, IsTheLastQueryOfThePass) {
  const StepOps ops = step_ops();
  for (const std::int64_t S : {1, 2, 3, 4, 5, 8, 9, 31, 32, 33, 70, 129}) {
    for (const auto& [G, h] : fixtures::kHeads) {
      const fixtures::Inputs in({.B = 2, .S = S, .G = G, .h = h, .Dk = 8, .Dv = 6},
                                100 + static_cast<std::uint64_t>(S));
      const auto q = in.q.narrow(1, S - 1, 1);
      const auto group_first = [](const at::Tensor& t) { return t.transpose(1, 2); };
      const auto last = [&](const at::Tensor& t) { return t.narrow(1, S - 1, 1); };

      const Compressed kv = reference::compress(in.compress());
      const auto k_cmp = kv.k.size(1) > 0 ? group_first(kv.k) : at::Tensor();
      const auto blocks = ops.select({q, k_cmp, S - 1, G, kSmall});
      ASSERT_TRUE(at::equal(blocks, last(reference::select(in.select(kv))))) << S << " " << G << " " << h;

      if (k_cmp.defined()) {
        const auto wanted = last(reference::attend_compressed(in.compressed(kv)).o);
        ASSERT_LE(distance(ops.attend({q, k_cmp, group_first(kv.v)}), wanted), 1e-13);
      }
      const auto chosen = [&](const at::Tensor& t) { return gather_blocks(group_first(t), blocks, S - 1, kSmall); };
      const auto all = reference::select(in.select(kv));
      ASSERT_LE(
          distance(ops.attend({q, chosen(in.k), chosen(in.v)}), last(reference::attend_selected(in.selected(all)).o)),
          1e-13);
    }
  }
}

TEST(Step, TiesGoToTheLowerBlock) {
  // Equal scores everywhere: the forced blocks 0, current and the one before, then the lowest.
  const Geometry g{.l = 4, .d = 2, .l_sel = 8, .n_sel = 5, .w = 6};
  const std::int64_t t = 66, N_c = compressed_blocks(g, t + 1);  // 32: a power of two, so that 1/N_c sums exactly
  const auto blocks = step_ops().select({at::zeros({1, 1, 2, 8}), random({1, 2, N_c, 8}, 1, at::kFloat), t, 2, g});
  EXPECT_TRUE(at::equal(blocks, at::tensor({0, 1, 2, 7, 8}, at::kInt).expand({1, 1, 2, 5})));
}

// ---- the decoder --------------------------------------------------------------------------------------------------

struct Setting {
  ModelConfig config = tiny();
  Environment environment;
};

std::vector<Setting> settings() {
  std::vector<Setting> all(1);
  Setting mlp;
  mlp.config.phi = Phi::mlp;
  mlp.config.gate = GateActivation::sigmoid;
  mlp.config.d_v = 6;
  mlp.config.n_heads = 6;
  all.push_back(mlp);
  for (const Environment& environment : {Environment{{"NSA_FORCE_BRANCH", "cmp"}},
                                         {{"NSA_FORCE_BRANCH", "sel"}},
                                         {{"NSA_FORCE_BRANCH", "win"}},
                                         {{"NSA_FORCE_UNIFORM_GATE", "1"}},
                                         {{"NSA_ROPE_SCALE", "4"}},
                                         {{"NSA_FORCE_PARITY", "1"}},
                                         {{"NSA_STRICT_ASSERTS", "1"}}})
    all.push_back({tiny(), environment});
  Setting wide;  // a window and a selection that cover everything
  wide.config.nsa = {.l = 8, .d = 2, .l_sel = 8, .n_sel = 30, .w = 200};
  all.push_back(wide);
  return all;
}

torch::Tensor prefill_and_steps(Decoder& decoder, const torch::Tensor& tokens, std::int64_t P) {
  const std::int64_t S = tokens.size(1);
  std::vector<torch::Tensor> logits;
  if (P > 0) logits.push_back(decoder.prefill(tokens.narrow(1, 0, P)));
  if (P < S) logits.push_back(decoder.sequential(tokens.narrow(1, P, S - P)));
  return torch::cat(logits, 1);
}

TEST(Decoder, EveryWayGivesTheLogitsOfTheForwardPass) {
  const torch::NoGradGuard no_grad;
  const std::int64_t S = 67;
  for (const Setting& setting : settings()) {
    auto model = make_model(setting.config, setting.environment);
    model->to(torch::kDouble);
    const auto tokens = bytes({2, S}, 11);
    const auto wanted = model(tokens);
    const std::int64_t l = setting.config.nsa.l;
    for (const std::int64_t P : {std::int64_t{0}, std::int64_t{1}, l - 1, l, l + 1, S / 2, S - 1, S}) {
      Decoder decoder(model, {.capacity = 16});
      EXPECT_LE(distance(prefill_and_steps(decoder, tokens, P), wanted), 1e-11)
          << P << " " << (setting.environment.empty() ? "" : setting.environment.begin()->first);
      EXPECT_EQ(decoder.length(), S);
    }
  }
}

TEST(Decoder, InThePrecisionsOfTraining) {
  const torch::NoGradGuard no_grad;
  const auto tokens = bytes({2, 67}, 12);
  auto model = make_model(tiny());
  for (const auto& [type, bound] : {std::pair{torch::kFloat, 1e-5}, {torch::kBFloat16, 0.1}}) {
    model->to(type);
    Decoder decoder(model);
    const auto logits = prefill_and_steps(decoder, tokens, 30);
    EXPECT_EQ(logits.scalar_type(), type);
    EXPECT_LE(distance(logits, model(tokens)), bound);
  }
}

TEST(Decoder, ABatchIsItsRows) {
  const torch::NoGradGuard no_grad;
  auto model = make_model(tiny());
  model->to(torch::kDouble);
  const auto tokens = bytes({3, 40}, 13);
  Decoder together(model), alone(model);
  const auto logits = prefill_and_steps(together, tokens, 20);
  for (std::int64_t b = 0; b < 3; ++b) {
    alone.reset();
    EXPECT_LE(distance(prefill_and_steps(alone, tokens.narrow(0, b, 1), 20), logits.narrow(0, b, 1)), 1e-12);
  }
}

TEST(Decoder, ReadsWhatTheLawSays) {
  const torch::NoGradGuard no_grad;
  auto model = make_model(tiny());
  const auto tokens = bytes({2, 90}, 14);
  for (const std::int64_t P : {0, 1, 50}) {
    Decoder decoder(model);
    if (P > 0) static_cast<void>(decoder.prefill(tokens.narrow(1, 0, P)));
    EXPECT_TRUE(decoder.reads().empty());
    for (std::int64_t t = P; t < 90; ++t) {
      static_cast<void>(decoder.step(tokens.narrow(1, t, 1)));
      ASSERT_EQ(decoder.reads().size(), 2u);
      for (const Reads& reads : decoder.reads()) {
        ASSERT_EQ(reads.compressed, compressed_blocks(kSmall, t + 1));
        ASSERT_EQ(reads.selected, (std::min<std::int64_t>(3, t / 8 + 1) - 1) * 8 + t % 8 + 1);
        ASSERT_EQ(reads.window, std::min<std::int64_t>(6, t + 1));
        ASSERT_EQ(reads.total(), reads.compressed + reads.selected + reads.window);
      }
    }
  }
}

TEST(Decoder, HoldsNoMoreMemoryThanItsTokensNeed) {
  const torch::NoGradGuard no_grad;
  auto model = make_model(tiny());
  Decoder decoder(model, {.capacity = 64});
  EXPECT_EQ(decoder.bytes(), 0);
  static_cast<void>(decoder.prefill(bytes({1, 1000}, 15)));
  // A token's K and V in the selected branch and a stride's in the compressed one, at most doubled;
  // two rings; rotations.
  const std::int64_t row = 2 * (8 + 8) * 4, layers = 2;
  const std::int64_t exact = layers * row * (1000 + compressed_blocks(kSmall, 1000) + 4 + 6) + 1000 * 4 * 8;
  EXPECT_GE(decoder.bytes(), exact);
  EXPECT_LE(decoder.bytes(), 2 * exact);
  decoder.reset();
  EXPECT_EQ(decoder.bytes(), 0);
  EXPECT_EQ(decoder.length(), 0);
}

TEST(Decoder, ForcingABranchKeepsOnlyItsKeys) {
  const torch::NoGradGuard no_grad;
  auto model = make_model(tiny(), {{"NSA_FORCE_BRANCH", "win"}});
  Decoder decoder(model);
  static_cast<void>(prefill_and_steps(decoder, bytes({1, 40}, 16), 20));
  EXPECT_EQ(decoder.caches()[1].k_sel.bytes() + decoder.caches()[1].k_cmp.bytes() + decoder.caches()[1].k_raw.bytes(),
            0);
  EXPECT_EQ(decoder.reads()[1].total(), 6);
}

TEST(Decoder, ShowsItsStages) {
  const torch::NoGradGuard no_grad;
  auto model = make_model(tiny());
  Decoder decoder(model);
  static_cast<void>(decoder.prefill(bytes({2, 40}, 17)));
  std::map<std::string, std::vector<std::int64_t>> seen;
  model->runtime->observe = [&](std::string_view name, const at::Tensor& value) {
    seen[std::string(name)] = value.sizes().vec();
  };
  static_cast<void>(decoder.step(bytes({2, 1}, 18)));
  EXPECT_EQ(seen["layers.1.attention.blocks"], (std::vector<std::int64_t>{2, 1, 2, 3}));
  EXPECT_EQ(seen["layers.0.attention.q"], (std::vector<std::int64_t>{2, 1, 4, 8}));
  for (const char* stage : {"cmp.o", "sel.o", "win.o", "o"})
    EXPECT_EQ(seen["layers.0.attention." + std::string(stage)], (std::vector<std::int64_t>{2, 1, 4, 8})) << stage;
  EXPECT_EQ(seen["logits"], (std::vector<std::int64_t>{2, 1, 256}));
}

TEST(Decoder, GoesOnAfterInferenceMode) {
  auto model = make_model(tiny());
  Decoder decoder(model);
  const auto tokens = bytes({1, 30}, 19);
  {
    const c10::InferenceMode inference;
    static_cast<void>(decoder.prefill(tokens.narrow(1, 0, 29)));
  }
  const torch::NoGradGuard no_grad;
  EXPECT_LE(distance(decoder.step(tokens.narrow(1, 29, 1)), model(tokens).narrow(1, 29, 1)), 1e-5);
}

TEST(Decoder, RefusesWithWords) {
  auto model = make_model(tiny());
  const auto tokens = bytes({2, 10}, 20);
  Decoder decoder(model, {.max_tokens = 12});
  const auto refusal = [&](const std::function<void()>& call) { return message_of(call); };
  const auto says = [](const std::string& message, const char* words) {
    EXPECT_NE(message.find(words), std::string::npos) << message;
  };
  says(refusal([&] { static_cast<void>(decoder.prefill(tokens)); }), "gradients are on");
  const torch::NoGradGuard no_grad;
  says(refusal([&] { static_cast<void>(decoder.step(tokens)); }), "10 tokens a row; allowed: 1");
  says(refusal([&] { static_cast<void>(decoder.prefill(torch::zeros({2, 0}, torch::kLong))); }), "not empty");
  says(refusal([&] { static_cast<void>(decoder.prefill(bytes({1, 13}, 1))); }), "12 in all (max_tokens)");
  static_cast<void>(decoder.prefill(tokens));
  says(refusal([&] { static_cast<void>(decoder.prefill(tokens)); }), "10 tokens are cached");
  says(refusal([&] { static_cast<void>(decoder.step(tokens.narrow(0, 0, 1).narrow(1, 0, 1))); }), "B = 1; allowed: 2");
  says(refusal([&] { static_cast<void>(decoder.step(torch::full({2, 1}, 256, torch::kLong))); }), "0 to 255");
  static_cast<void>(decoder.sequential(tokens.narrow(1, 0, 2)));
  says(refusal([&] { static_cast<void>(decoder.step(tokens.narrow(1, 0, 1))); }), "1 tokens after 12 cached ones");
  says(refusal([&] { Decoder bad(model, {.capacity = 0}); }), "capacity = 0");
  says(refusal([&] { Decoder bad(model, {.max_tokens = -1}); }), "max_tokens = -1");
}

TEST(Decoder, APassThatFailedMustBeForgotten) {
  const torch::NoGradGuard no_grad;
  auto model = make_model(tiny());
  Options options;
  bool fail = false;
  options.ops.attend = [&, attend = options.ops.attend](const StepAttendArgs& args) {
    if (fail) throw std::runtime_error("planted");
    return attend(args);
  };
  Decoder decoder(model, options);
  const auto tokens = bytes({1, 20}, 21);
  static_cast<void>(decoder.prefill(tokens));
  fail = true;
  EXPECT_THROW(static_cast<void>(decoder.step(tokens.narrow(1, 0, 1))), std::runtime_error);
  fail = false;
  EXPECT_NE(message_of([&] { static_cast<void>(decoder.step(tokens.narrow(1, 0, 1))); }).find("reset()"),
            std::string::npos);
  decoder.reset();
  EXPECT_LE(distance(prefill_and_steps(decoder, tokens, 7), model(tokens)), 1e-5);
}

// ---- what must show ------------------------------------------------------------------------------------------------

double error_with(const std::function<void(StepOps&)>& defect, std::int64_t P) {
  const torch::NoGradGuard no_grad;
  auto model = make_model(tiny());
  model->to(torch::kDouble);
  const auto tokens = bytes({1, 67}, 22);
  Options options;
  defect(options.ops);
  Decoder decoder(model, options);
  return distance(prefill_and_steps(decoder, tokens, P), model(tokens));
}

TEST(Decoder, DefectsOfTheCachesMoveTheLogits) {
  EXPECT_LE(error_with([](StepOps&) {}, 30), 1e-11);
  // The compressed branch's raw stream starts anew after prefill.
  EXPECT_GE(error_with(
                [](StepOps& ops) {
                  ops.remember = [inner = ops.remember](LayerCache& cache, const Projected& tokens) {
                    inner(cache, tokens);
                    if (tokens.q.size(1) == 1) return;
                    for (Stream* raw : {&cache.k_raw, &cache.v_raw}) {
                      const auto zeros = at::zeros_like(raw->last(raw->kept()).transpose(1, 2));
                      raw->append(zeros);
                    }
                  };
                },
                30),
            1e-4);
  // The window's ring is off by one after prefill.
  EXPECT_GE(error_with(
                [](StepOps& ops) {
                  ops.remember = [inner = ops.remember](LayerCache& cache, const Projected& tokens) {
                    inner(cache, tokens);
                    if (tokens.q.size(1) > 1) cache.k_win.append(tokens.k_win.narrow(1, 0, 1));
                  };
                },
                30),
            1e-4);
  // A causal mask aligned to the top left: the one query sees the first key alone.
  EXPECT_GE(error_with(
                [](StepOps& ops) {
                  ops.attend = [](const StepAttendArgs& args) {
                    const auto q = args.q.view({args.q.size(0), args.k.size(1), -1, args.q.size(3)}).narrow(2, 0, 1);
                    const auto o = at::scaled_dot_product_attention(q, args.k, args.v, {}, 0.0, /*is_causal=*/true);
                    return o.expand({-1, -1, args.q.size(2) / args.k.size(1), -1})
                        .reshape({args.q.size(0), 1, args.q.size(2), args.v.size(3)});
                  };
                },
                30),
            1e-4);
}

TEST(Decoder, WorksOnAGpu) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU";
  const torch::NoGradGuard no_grad;
  for (const auto& [type, bound] : {std::pair{torch::kDouble, 1e-11}, {torch::kFloat, 2e-5}, {torch::kBFloat16, 0.1}}) {
    auto model = make_model(tiny());
    model->to(torch::kCUDA, type);
    const auto tokens = bytes({2, 67}, 23).to(torch::kCUDA);
    for (const std::int64_t P : {0, 1, 30}) {
      Decoder decoder(model);
      EXPECT_LE(distance(prefill_and_steps(decoder, tokens, P), model(tokens)), bound) << P;
    }
  }
}

}  // namespace
}  // namespace nsa::decode
