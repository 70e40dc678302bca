// The capability tables (FlashAttention-2's, our own kernels'): each limit refuses by name, and the route hands the
// reason on. Pure, so that a machine without a GPU proves it as well.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <tuple>

#include "nsa/call.hpp"
#include "nsa/cuda/architectures.hpp"
#include "nsa/cuda/features.hpp"
#include "nsa/route.hpp"
#include "suites/codes.hpp"
#include "suites/flag_matrix/checks.hpp"

namespace suites::flag_checks {

namespace {

struct Limit {
  std::vector<std::string> words;  // that the refusal names: people read it
  nsa::Call call;
};
bool names_all(const Limit& limit, const std::string& refusal) {
  return std::all_of(limit.words.begin(), limit.words.end(),
                     [&](const auto& w) { return refusal.find(w) != refusal.npos; });
}
// The route has the backend's own reason on record, and people can read it.
bool hands_on(const nsa::Choice& choice, nsa::Backend backend, const std::string& refusal) {
  return choice.why.find(refusal) != choice.why.npos &&
         std::any_of(choice.refused.begin(), choice.refused.end(),
                     [&](const nsa::Refused& refused) { return refused.backend == backend && refused.why == refusal; });
}
std::string shown(const nsa::Choice& choice) {
  return fmt::format("{} ({})", nsa::to_string(choice.backend), choice.why);
}

// The feature table of our own kernels: each limit refuses by name, the route hands the reason on and takes sdpa.
void check_features(Context& context, const nsa::Call& good) {
  const auto with = [&](auto change) {
    nsa::Call call = good;
    change(call);
    return call;
  };
  const std::string served(nsa::compiled_architectures());
  const std::vector<Limit> limits = {{{"cpu"}, with([](auto& c) { c.cuda = false; })},
                                     {{"7.5", served}, with([](auto& c) { c.cuda_major = 7, c.cuda_minor = 5; })},
                                     {{"fp32", "bf16"}, with([](auto& c) { c.precision = nsa::Precision::fp32; })},
                                     {{"fp64", "bf16"}, with([](auto& c) { c.precision = nsa::Precision::fp64; })},
                                     {{"d_k 64", "d_v 32"}, with([](auto& c) { c.Dv = 32; })},
                                     {{"d_k 96", "d_v 96"}, with([](auto& c) { c.Dk = c.Dv = 96; })},
                                     {{"17 heads", "16"}, with([](auto& c) { c.Hq = 17, c.G = 1; })},
                                     {{"65 selected", "64"}, with([](auto& c) { c.geometry.n_sel = 65; })}};
  const nsa::EffectiveFlags flags = nsa::resolve({{"NSA_USE_CUDA", "1"}});
  for (const nsa::Op op : nsa::kAllOps) {
    for (const Limit& limit : limits) {
      const auto& [words, call] = limit;
      const std::string why = nsa::cuda_refusal(call, op);
      const nsa::Choice choice = nsa::route(flags, call)[op];
      const bool named = names_all(limit, why) && hands_on(choice, nsa::Backend::cuda, why);
      const std::string what = fmt::format("features of {}: a call with {} must be refused by name and go to sdpa",
                                           nsa::to_string(op), fmt::join(words, ", "));
      context.expect(what, named && choice.backend == nsa::Backend::sdpa, what, codes::kContractNotEnforced,
                     {{"refusal", why}, {"route", shown(choice)}});
    }
    for (const auto& [Dk, Dv] : {std::pair<std::int64_t, std::int64_t>{32, 32}, {64, 64}, {128, 128}, {192, 128}}) {
      const nsa::Call call = with([&, k = Dk, v = Dv](auto& c) { c.Dk = k, c.Dv = v; });
      const std::string what =
          fmt::format("features of {}: widths {} and {} must be served", nsa::to_string(op), Dk, Dv);
      context.expect(what, nsa::cuda_refusal(call, op).empty(), what, codes::kContractNotEnforced,
                     {{"refusal", nsa::cuda_refusal(call, op)}});
    }
  }
}

}  // namespace

void capabilities(Context& context, const flag_execution::Plan& plan) {
  nsa::Call good = nsa::call_of(plan.model, 1, plan.S, nsa::Precision::bf16, at::kCPU);
  good.cuda = true;
  good.cuda_major = 9;
  good.Dk = good.Dv = 64;
  const auto with = [&](auto change) {
    nsa::Call call = good;
    change(call);
    return call;
  };
  const std::vector<Limit> limits = {{{"cpu"}, with([](auto& c) { c.cuda = false; })},
                                     {{"7.5", "8.0"}, with([](auto& c) { c.cuda_major = 7, c.cuda_minor = 5; })},
                                     {{"fp32", "bf16"}, with([](auto& c) { c.precision = nsa::Precision::fp32; })},
                                     {{"fp64", "bf16"}, with([](auto& c) { c.precision = nsa::Precision::fp64; })},
                                     {{"d_k 64", "d_v 32"}, with([](auto& c) { c.Dv = 32; })},
                                     {{"head width 4"}, with([](auto& c) { c.Dk = c.Dv = 4; })},
                                     {{"head width 12"}, with([](auto& c) { c.Dk = c.Dv = 12; })},
                                     {{"head width 264"}, with([](auto& c) { c.Dk = c.Dv = 264; })}};
  nsa::Call plain = good;  // its own heads and geometry may be others than our kernels serve
  plain.Hq = 12;
  plain.G = 2;
  plain.geometry = {};
  std::tie(plain.cuda_major, plain.cuda_minor) = nsa::first_architecture(nsa::compiled_architectures());
  check_features(context, plain);
  const nsa::EffectiveFlags flags = nsa::resolve({{"NSA_USE_FA2", "1"}});
  for (const nsa::Op op : {nsa::Op::attend_window, nsa::Op::attend_compressed}) {
    const auto expect = [&](bool holds, const std::string& what, const Json& evidence) {
      context.expect(fmt::format("capability of {}: {}", nsa::to_string(op), what), holds,
                     fmt::format("{}: {}", nsa::to_string(op), what), codes::kContractNotEnforced, evidence);
    };
    for (const Limit& limit : limits) {
      const auto& [words, call] = limit;
      const std::string why = nsa::flash_refusal(call, op);
      const nsa::Choice choice = nsa::route(flags, call)[op];
      const bool named = names_all(limit, why) && hands_on(choice, nsa::Backend::flash, why);
      expect(named && choice.backend == nsa::Backend::sdpa,
             fmt::format("a call with {} must be refused by name and go to sdpa", fmt::join(words, ", ")),
             {{"refusal", why}, {"route", shown(choice)}});
    }
    for (std::int64_t width = 8; width <= 256; width += 8) {
      const nsa::Call call = with([&](auto& c) { c.Dk = c.Dv = width; });
      expect(nsa::flash_refusal(call, op).empty(), fmt::format("head width {} must be served", width),
             {{"refusal", nsa::flash_refusal(call, op)}});
    }
  }
}

}  // namespace suites::flag_checks
