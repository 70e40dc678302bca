// Arguments that break a contract: each must be refused, before anything is computed from them.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include "base/text.hpp"
#include "suites/codes.hpp"
#include "suites/forward/checks.hpp"

namespace suites::forward_checks {

namespace {

struct BadInput {
  std::string name;  // what is wrong with it
  at::Tensor tokens;
  nsa::CuSeqlens cu_seqlens;
};

at::Tensor offsets(std::vector<int> values) { return at::tensor(values, at::kInt); }

std::vector<BadInput> bad_inputs(const nsa::ModelConfig& model) {
  constexpr int S = 48;
  const at::Tensor good = at::arange(S, at::kLong).remainder(model.vocab).unsqueeze(0);
  at::Tensor above = good.clone(), below = good.clone();
  above[0][7] = model.vocab;
  below[0][7] = -1;
  return {
      {"a token that is not below the vocabulary's size", above, {}},
      {"a negative token", below, {}},
      {"tokens of a floating dtype", good.to(at::kFloat), {}},
      {"tokens without a batch dimension", good.squeeze(0), {}},
      {"cu_seqlens that does not start at 0", good, offsets({1, 20, S})},
      {"cu_seqlens that decreases", good, offsets({0, 30, 20, S})},
      {"cu_seqlens that ends before the last token", good, offsets({0, 20, S - 1})},
      {"cu_seqlens that ends after the last token", good, offsets({0, 20, S + 1})},
      {"cu_seqlens of int64", good, offsets({0, 20, S}).to(at::kLong)},
      {"cu_seqlens of two dimensions", good, offsets({0, S}).unsqueeze(0)},
      {"cu_seqlens without an element", good, at::empty({0}, at::kInt)},
      {"cu_seqlens with a batch of two", at::cat({good, good}), offsets({0, 20, S})},
  };
}

}  // namespace

void bad_input(const Subject& subject, Context& context, const Setup& setup) {
  const at::NoGradGuard no_grad;
  Instance instance = subject.model({.config = setup.model,
                                     .flags = setup.flags,
                                     .precision = setup.precision,
                                     .device = setup.device,
                                     .seed = context.seed("weights")});
  Json refusals = Json::object();
  for (const BadInput& bad : bad_inputs(setup.model)) {
    context.phase(bad.name);
    bool refused = false;
    std::string message;
    try {
      (void)instance.model->forward(bad.tokens, bad.cu_seqlens);
    } catch (const std::exception& error) {
      refused = true;
      message = base::first_line(error.what());
    }
    refusals[bad.name] = message;
    context.expect("refused: " + bad.name, refused, bad.name + " was accepted", codes::kBadInputAccepted,
                   {{"argument", bad.cu_seqlens ? "cu_seqlens" : "tokens"}, {"what", bad.name}});
  }
  context.fact("refusals", refusals);
}

}  // namespace suites::forward_checks
