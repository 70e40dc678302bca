// A step of decoding on our own kernels: against the reference in fp64, and a whole decoder against the forward pass.
#include "nsa/cuda/decode.hpp"

#include <ATen/ATen.h>

#include <tuple>

#include "nsa/decode/decoder.hpp"
#include "nsa/tests/cuda_fixtures.hpp"
#include "nsa/tests/model_fixtures.hpp"

namespace nsa::cuda {
namespace {

using decode::Decoder;
using decode::StepOps;
using fixtures::bytes;
using fixtures::CudaKernels;
using fixtures::device;
using fixtures::on_device;
using fixtures::relative_error;

constexpr Geometry kFew{.l = 4, .d = 2, .l_sel = 8, .n_sel = 5, .w = 6};

struct StepShape {
  std::int64_t S = 1, B = 1, G = 2, h = 3, Dk = 32, Dv = 32;
  at::ScalarType type = at::kBFloat16;
  Geometry g = kFew;
};

// The caches after S tokens, the last of which asks, and what the reference makes of the same numbers.
struct StepProblem {
  DecodeArgs args;
  at::Tensor o, blocks, cmp, sel, win;

  explicit StepProblem(const StepShape& s) {
    const auto draw = [&](std::int64_t heads, std::int64_t width, std::uint64_t seed) {
      return on_device({s.B, s.S, heads, width}, seed, s.type);
    };
    const auto q = draw(s.G * s.h, s.Dk, 1);
    const auto gates = at::softmax(on_device({s.B, s.S, s.G, 3}, 6, at::kFloat), -1);
    const auto raw = reference::compress({draw(s.G, s.Dk, 2), draw(s.G, s.Dv, 3), s.g, {}, {}, {}});
    const Compressed kv{raw.k.to(s.type), raw.v.to(s.type)};
    const auto k_sel = draw(s.G, s.Dk, 4), v_sel = draw(s.G, s.Dv, 5), k_win = draw(s.G, s.Dk, 7),
               v_win = draw(s.G, s.Dv, 8);
    // As the caches keep them, with room behind; the window's ring has begun anew somewhere.
    const auto kept = [](const at::Tensor& rows) {
      const auto room = at::zeros({rows.size(0), rows.size(2), rows.size(1) + 3, rows.size(3)}, rows.options());
      room.narrow(2, 0, rows.size(1)).copy_(rows.transpose(1, 2));
      return rows.size(1) > 0 ? room.narrow(2, 0, rows.size(1)) : at::Tensor();
    };
    const auto ring = [&](const at::Tensor& rows) {
      const std::int64_t count = std::min(s.g.w, s.S);
      return kept(at::roll(rows.narrow(1, s.S - count, count), count / 3, 1));
    };
    const auto last = [&](const at::Tensor& rows) { return rows.narrow(1, s.S - 1, 1); };
    args = {last(q),     last(gates), kept(kv.k), kept(kv.v), kept(k_sel), kept(v_sel),
            ring(k_win), ring(v_win), s.S - 1,    s.g,        true};

    const auto f64 = [](const at::Tensor& x) { return x.to(at::kDouble); };
    const Compressed exact{f64(kv.k), f64(kv.v)};
    const auto all = reference::select({f64(q), exact.k, s.g, {}});
    blocks = last(all);
    cmp = last(reference::attend_compressed({f64(q), exact, s.g, {}}).o);
    sel = last(reference::attend_selected({f64(q), f64(k_sel), f64(v_sel), all, s.g, {}}).o);
    win = last(reference::attend_window({f64(q), f64(k_win), f64(v_win), s.g, {}}).o);
    o = reference::combine({f64(last(gates)), cmp, sel, win});
  }
};

void check_step(const StepShape& s) {
  const StepProblem x(s);
  SCOPED_TRACE("S " + std::to_string(s.S) + ", B " + std::to_string(s.B) + ", G " + std::to_string(s.G) + ", h " +
               std::to_string(s.h) + ", " + std::to_string(s.Dk) + "/" + std::to_string(s.Dv));
  ASSERT_EQ(decode_refusal(x.args), "");
  const Decoded got = cuda::decode(x.args);
  EXPECT_TRUE(at::equal(got.blocks.cpu(), x.blocks.cpu()));
  // Of the few queries here some see few keys; fixtures::kFewKeysBound is for them.
  for (const auto& [name, own, wanted] :
       {std::tuple{"o", got.o, x.o}, {"cmp", got.cmp, x.cmp}, {"sel", got.sel, x.sel}, {"win", got.win, x.win}})
    EXPECT_LE(relative_error(own, wanted), fixtures::kOutputBound * 1.5) << name;
  EXPECT_EQ(got.selected,
            (std::min<std::int64_t>(s.g.n_sel, x.args.t / s.g.l_sel + 1) - 1) * s.g.l_sel + x.args.t % s.g.l_sel + 1);
}

// The first token; before the first compressed block and at its end; t mod l' = 0 and l' - 1; as many blocks as are
// chosen and one more.
TEST_F(CudaKernels, StepsOfDecodingAtEveryEdge) {
  for (const std::int64_t S : {1, 3, 4, 8, 9, 16, 40, 41, 48, 49}) check_step({.S = S, .h = 2});
  check_step({.S = 70, .B = 2});
}
TEST_F(CudaKernels, StepsOfDecodingInEveryShape) {
  check_step({.S = 60, .h = 1, .Dk = 64, .Dv = 64, .type = at::kHalf});
  check_step({.S = 60, .G = 1, .h = 16, .Dk = 128, .Dv = 128});
  check_step({.S = 60, .G = 1, .h = 7, .Dk = 192, .Dv = 128, .type = at::kHalf});
  check_step({.S = 1100, .G = 1, .h = 2, .g = {}});  // the paper's geometry
}
// c's shape over a long text. The reference would need S^2 numbers a head; ATen's step in fp64 needs one row of them.
void check_long_step(std::int64_t S) {
  SCOPED_TRACE("S " + std::to_string(S));
  constexpr std::int64_t kGroups = 4, kHeads = 16, kWidth = 128;
  const Geometry g{};
  const auto rows = [&](std::int64_t count, std::uint64_t seed) {
    return on_device({1, kGroups, count, kWidth}, seed, at::kBFloat16);
  };
  const auto q = on_device({1, 1, kGroups * kHeads, kWidth}, 1, at::kBFloat16);
  const auto gates = at::softmax(on_device({1, 1, kGroups, 3}, 2, at::kFloat), -1);
  const std::int64_t blocks = (S - g.l) / g.d + 1, window = std::min(g.w, S);
  const DecodeArgs args{q,          gates,           rows(blocks, 3), rows(blocks, 4), rows(S, 5),
                        rows(S, 6), rows(window, 7), rows(window, 8), S - 1,           g,
                        true};
  ASSERT_EQ(decode_refusal(args), "");
  const Decoded got = cuda::decode(args);

  const auto f64 = [](const at::Tensor& x) { return x.to(at::kDouble); };
  const StepOps aten = decode::step_ops();
  const auto chosen = aten.select({f64(q), f64(args.k_cmp), S - 1, kGroups, g});
  EXPECT_TRUE(at::equal(got.blocks.cpu(), chosen.cpu()));
  const auto of_blocks = [&](const at::Tensor& all) { return f64(decode::gather_blocks(all, chosen, S - 1, g)); };
  const auto cmp = aten.attend({f64(q), f64(args.k_cmp), f64(args.v_cmp)}),
             sel = aten.attend({f64(q), of_blocks(args.k_sel), of_blocks(args.v_sel)}),
             win = aten.attend({f64(q), f64(args.k_win), f64(args.v_win)});
  for (const auto& [name, own, wanted] : {std::tuple{"o", got.o, reference::combine({f64(gates), cmp, sel, win})},
                                          {"cmp", got.cmp, cmp},
                                          {"sel", got.sel, sel},
                                          {"win", got.win, win}})
    EXPECT_LE(relative_error(own, wanted), fixtures::kOutputBound * 1.5) << name;
}
TEST_F(CudaKernels, StepsOfDecodingOverLongTexts) {
  if (kernels::is_emulated()) GTEST_SKIP() << "takes minutes in the emulation";
  for (const std::int64_t S : {4096, 8191, 65536, 131072}) check_long_step(S);
}

TEST_F(CudaKernels, DecodingIsTheSameBitsTwice) {
  const StepProblem x({.S = 70, .B = 2});
  const Decoded first = cuda::decode(x.args), second = cuda::decode(x.args);
  EXPECT_TRUE(at::equal(first.o, second.o));
  EXPECT_TRUE(at::equal(first.blocks, second.blocks));
}

TEST_F(CudaKernels, DecodingRefusesWithWords) {
  const auto refusal = [](const std::function<void(DecodeArgs&)>& change) {
    StepProblem x({.S = 40});
    change(x.args);
    return decode_refusal(x.args);
  };
  const auto says = [](const std::string& reason, const char* words) {
    EXPECT_NE(reason.find(words), std::string::npos) << reason;
  };
  EXPECT_EQ(refusal([](DecodeArgs&) {}), "");
  says(refusal([](DecodeArgs& a) { a.k_cmp = a.v_cmp = at::Tensor(); }), "complete blocks");
  says(refusal([](DecodeArgs& a) { a.t -= 1; }), "[B,G,t+1,D]");
  says(refusal([](DecodeArgs& a) { a.v_win = a.v_win.narrow(2, 0, 1); }), "window");
  says(refusal([](DecodeArgs& a) { a.gates = a.gates.to(at::kDouble); }), "gates");
  says(refusal([](DecodeArgs& a) { a.k_win = at::Tensor(); }), "empty");
  says(refusal([](DecodeArgs& a) {
         for (at::Tensor* x : {&a.q, &a.gates, &a.k_cmp, &a.v_cmp, &a.k_sel, &a.v_sel, &a.k_win, &a.v_win})
           *x = x->to(at::kFloat);
       }),
       "precision is fp32");
  StepProblem x({.S = 40});
  x.args.t -= 1;
  EXPECT_THROW(static_cast<void>(cuda::decode(x.args)), Unsupported);
}

// ---- the decoder --------------------------------------------------------------------------------------------------

ModelConfig config() {
  ModelConfig model = fixtures::tiny();
  model.n_layers = 1;
  model.d_k = model.d_v = 32;
  model.nsa = kFew;
  return model;
}
LanguageModel decoding_on_kernels(const Environment& environment = {}) {
  auto model = fixtures::make_model(config(), environment);
  model->to(device(), at::kBFloat16);
  // The emulation's tensors are the processor's: no route leads there.
  if (kernels::is_emulated() && resolve(environment).use_cuda)
    model->runtime->ops = [](const Call&) { return backend_ops(Backend::cuda); };
  return model;
}
PartTaken way_of(const LanguageModel& model) {
  for (const PartTaken& taken : model->runtime->parts->taken())
    if (taken.part == "decode") return taken;
  return {"decode", "nothing", "", 0};
}
constexpr std::int64_t kTokens = 46;  // from 40 on blocks are chosen
// Steps after a prefill of P: how far their logits are off the pass's.
double off(LanguageModel model, std::int64_t P, StepOps ops = decode::step_ops()) {
  const at::NoGradGuard no_grad;
  const auto tokens = bytes({2, kTokens}, 11).to(device());
  Decoder decoder(model, {.capacity = 16, .ops = std::move(ops)});
  if (P > 0) static_cast<void>(decoder.prefill(tokens.narrow(1, 0, P)));
  return relative_error(decoder.sequential(tokens.narrow(1, P, kTokens - P)),
                        model->forward(tokens).narrow(1, P, kTokens - P));
}
constexpr double kLogitsBound = 1e-2;  // of bf16

TEST_F(CudaKernels, ADecoderIsTheForwardPass) {
  for (const std::int64_t P : {0, 41}) {
    const auto model = decoding_on_kernels();
    EXPECT_LE(off(model, P), kLogitsBound) << P;
    const PartTaken way = way_of(model);
    EXPECT_EQ(way.way, "cuda") << way.why;
    EXPECT_EQ(way.calls, kTokens - P);
    EXPECT_NE(way.kernel.find("decoding by "), std::string::npos) << way.kernel;
  }
}

TEST_F(CudaKernels, ADecoderShowsItsStagesAndWhatItReads) {
  const at::NoGradGuard no_grad;
  const auto model = decoding_on_kernels();
  Decoder decoder(model);
  static_cast<void>(decoder.prefill(bytes({2, 52}, 17).to(device())));
  std::vector<std::string> order;
  std::map<std::string, at::Tensor> seen;
  model->runtime->observe = [&](std::string_view name, const at::Tensor& value) {
    if (!name.starts_with("layers.0.attention.")) return;
    order.emplace_back(name.substr(19));
    seen[order.back()] = value;
  };
  const auto shown = decoder.step(bytes({2, 1}, 18).to(device()));
  model->runtime->observe = nullptr;
  EXPECT_EQ(way_of(model).way, "cuda");
  EXPECT_EQ(order, (std::vector<std::string>{"gates", "q", "cmp.o", "blocks", "sel.o", "win.o", "o"}));
  const auto sum = reference::combine({seen["gates"].to(at::kDouble), seen["cmp.o"].to(at::kDouble),
                                       seen["sel.o"].to(at::kDouble), seen["win.o"].to(at::kDouble)});
  EXPECT_LE(relative_error(seen["o"], sum), 6e-3);
  EXPECT_EQ(decoder.reads()[0].compressed, compressed_blocks(kFew, 53));
  EXPECT_EQ(decoder.reads()[0].selected, 4 * 8 + 52 % 8 + 1);
  EXPECT_EQ(decoder.reads()[0].window, 6);
}

TEST_F(CudaKernels, WhatKeepsADecoderFromItIsTold) {
  for (const auto& [flag, value] :
       {std::pair{"NSA_FUSED_DECODE", "0"}, {"NSA_STRICT_ASSERTS", "1"}, {"NSA_USE_CUDA", "0"}}) {
    const auto model = decoding_on_kernels({{flag, value}});
    EXPECT_LE(off(model, 43), kLogitsBound);
    EXPECT_EQ(way_of(model).way + ": " + way_of(model).why, "aten: cuda refused: " + std::string(flag) + "=" + value);
  }
  const auto model = decoding_on_kernels();
  StepOps watched = decode::step_ops();
  std::int64_t asked = 0;
  watched.attend = [&, inner = watched.attend](const decode::StepAttendArgs& args) {
    ++asked;
    return inner(args);
  };
  EXPECT_LE(off(model, 43, watched), kLogitsBound);
  EXPECT_EQ(asked, 3 * 3);
  EXPECT_EQ(way_of(model).why, "cuda refused: a part of the step was replaced");
  model->runtime->parts = std::make_shared<PartRecord>();
  model->runtime->ops = [](const Call&) { return backend_ops(Backend::sdpa); };
  EXPECT_LE(off(model, 43), kLogitsBound);
  EXPECT_EQ(way_of(model).why, "cuda refused: attention of a pass goes part by part");
}

// The comparison says no: a key that a step does not see, a choice of the block before's, NaN.
TEST_F(CudaKernels, WhatAStepDoesWrongMovesTheLogits) {
  const auto with = [](const std::function<void(DecodeArgs&)>& change) {
    StepOps ops = decode::step_ops();
    ops.attend_all = [change, inner = ops.attend_all](const DecodeArgs& args, const StepOps::OnKernel& on_kernel) {
      DecodeArgs own = args;
      change(own);
      return inner(own, on_kernel);
    };
    return off(decoding_on_kernels(), 42, ops);
  };
  EXPECT_LE(with([](DecodeArgs&) {}), kLogitsBound);
  const auto shorter = [](at::Tensor& x) { x = x.narrow(2, 0, x.size(2) - 1); };
  EXPECT_GT(with([&](DecodeArgs& a) { shorter(a.k_win), shorter(a.v_win); }), kLogitsBound);
  EXPECT_GT(with([](DecodeArgs& a) { a.q = a.q.roll(1, 2); }), kLogitsBound);
  EXPECT_GT(with([](DecodeArgs& a) { std::swap(a.k_sel, a.v_sel); }), kLogitsBound);
  const double nan = with([](DecodeArgs& a) {
    a.k_cmp = a.k_cmp.clone();
    a.k_cmp.select(2, 0).fill_(NAN);
  });
  EXPECT_FALSE(nan <= kLogitsBound);
}

}  // namespace
}  // namespace nsa::cuda
