#include "suites/parity/ways.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>

#include "nsa/call.hpp"
#include "suites/parity/documents.hpp"
#include "suites/ways.hpp"

namespace suites::parity_cases {

namespace {

using harness::Context;

// Collects what a model shows while this lives, over as many calls as there are.
class Recorder {
 public:
  using Look = std::function<void(std::string_view name, const at::Tensor& value)>;
  explicit Recorder(nsa::LanguageModelImpl& model, Look look = nullptr)
      : runtime_(model.runtime), look_(std::move(look)) {
    runtime_->observe = [this](std::string_view name, const at::Tensor& value) {
      if (look_) look_(name, value);
      auto [place, fresh] = parts_.try_emplace(std::string(name));
      if (fresh) order_.emplace_back(name);
      place->second.push_back(value.detach());
    };
  }
  ~Recorder() { runtime_->observe = nullptr; }
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  [[nodiscard]] Trace trace() const {
    Trace trace;
    for (const std::string& name : order_) trace.stages.emplace_back(name, at::cat(parts_.at(name), 1));
    trace.logits = trace.stage("logits");
    return trace;
  }

 private:
  std::shared_ptr<nsa::Runtime> runtime_;
  Look look_;
  std::vector<std::string> order_;
  std::map<std::string, std::vector<at::Tensor>> parts_;
};

Trace forward(nsa::LanguageModelImpl& model, const at::Tensor& tokens, bool gradients) {
  const at::AutoGradMode mode(gradients);
  const Recorder recorder(model);
  (void)model.forward(tokens);
  return recorder.trace();
}

// The rows of the batch as documents of one packed batch, and back.
Trace forward_packed(nsa::LanguageModelImpl& model, const at::Tensor& tokens) {
  const at::NoGradGuard no_grad;
  const std::int64_t B = tokens.size(0), S = tokens.size(1);
  const Recorder recorder(model);
  (void)model.forward(tokens.reshape({1, B * S}),
                      cumulative(std::vector<std::int64_t>(static_cast<std::size_t>(B), S)));
  Trace trace = recorder.trace();
  for (auto& [name, value] : trace.stages)
    if (value.size(1) == B * S) value = value.squeeze(0).unflatten(0, {B, S});
  trace.logits = trace.stage("logits");
  return trace;
}

nsa::Call call_of(const Context& context, const WaysOptions& options, bool gradients) {
  return nsa::call_of(options.config.model, options.B, options.S, options.precision, device_of(context), gradients);
}

nsa::Choice selection(const nsa::EffectiveFlags& flags, const nsa::Call& call) {
  return nsa::route(flags, call)[nsa::Op::attend_selected];
}

// Another backend than the subject's own flags ask for, under what else they ask for.
struct OtherBackend {
  const Way& way;
  nsa::EffectiveFlags flags;
};
std::vector<OtherBackend> backends(const nsa::EffectiveFlags& own, const nsa::Call& call) {
  std::vector<OtherBackend> all;
  for (const Way* way : model_ways(Way::OfModel::checked)) {
    if (way->name == "sdpa" || !way->refusal(call).empty()) continue;  // what is left where nothing is asked for
    all.push_back({*way, way->flags(own)});
    all.back().flags.fa2_min_len_win = all.back().flags.fa2_min_len_cmp = 1;  // short texts too
  }
  return all;
}

// No comparison may be made with something else than its name says.
void expect_route(const Prepared& prepared, const OtherBackend& backend) {
  if (!took(prepared.instance.dispatcher->routes_taken(), backend.way))
    throw std::logic_error(fmt::format("the way '{}' did not take {}", backend.way.title, backend.way.name));
}

}  // namespace

at::Tensor Trace::stage(const std::string& name) const {
  const auto found = std::find_if(stages.begin(), stages.end(), [&](const auto& s) { return s.first == name; });
  return found == stages.end() ? at::Tensor() : found->second;
}

namespace {

// Of blocks [B,1,G,n] a step at token t gathers the first min(n, t/l' + 1), of the last the tokens up to where t lies
// in its own block (nsa/decode/step.hpp): each of those tokens must be there.
void refuse_what_cannot_be_gathered(std::string_view stage, const at::Tensor& blocks, std::int64_t t,
                                    const nsa::Geometry& g) {
  const std::int64_t count = std::min({g.n_sel, t / g.l_sel + 1, blocks.size(3)});
  const at::Tensor first = blocks.narrow(3, 0, count).to(at::kCPU, at::kLong) * g.l_sel;
  at::Tensor last = first + (g.l_sel - 1);
  last.narrow(3, count - 1, 1).sub_(g.l_sel - 1 - t % g.l_sel);
  const at::Tensor bad = first.lt(0).logical_or(last.gt(t));
  if (!bad.any().item<bool>()) return;
  const at::Tensor place = bad.nonzero()[0];
  std::vector<std::int64_t> chosen;
  for (std::int64_t i = 0; i < blocks.size(3); ++i)
    chosen.push_back(blocks[place[0].item<std::int64_t>()][0][place[2].item<std::int64_t>()][i].item<int>());
  throw BrokenChoice(fmt::format("{} at token {} are [{}]: {} blocks are due, each with tokens up to that one alone",
                                 stage, t, fmt::join(chosen, ", "), count));
}

}  // namespace

Trace decode(Context& context, nsa::decode::Decoder& decoder, const at::Tensor& tokens, std::int64_t P) {
  const at::NoGradGuard no_grad;
  nsa::LanguageModel model = decoder.model();
  bool steps = false;
  const Recorder recorder(*model, [&](std::string_view name, const at::Tensor& value) {
    if (steps && name.ends_with(".attention.blocks"))
      refuse_what_cannot_be_gathered(name, value, decoder.length(), model->config.nsa);
  });
  if (P > 0) (void)decoder.prefill(tokens.narrow(1, 0, P));
  steps = true;
  for (std::int64_t t = P; t < tokens.size(1); ++t) {
    (void)decoder.step(tokens.narrow(1, t, 1));
    if (t % 16 == 0) context.progress();
  }
  return recorder.trace();
}

ModelWay training_forward(Context& context, const Subject& subject, const WaysOptions& options) {
  const auto prepared =
      std::make_shared<Prepared>(prepare(context, subject, options.config, options.precision, subject.flags()));
  return {"training forward", false, -1, selection(subject.flags(), call_of(context, options, true)),
          [prepared](const at::Tensor& tokens) { return forward(prepared->model(), tokens, true); }};
}

std::vector<ModelWay> other_ways(Context& context, const Subject& subject, const WaysOptions& options) {
  const auto make = [&](const nsa::EffectiveFlags& flags) {
    return std::make_shared<Prepared>(prepare(context, subject, options.config, options.precision, flags));
  };
  const auto own = make(subject.flags());
  const nsa::Choice plain = selection(subject.flags(), call_of(context, options, false));
  std::vector<ModelWay> ways = {
      {"forward without gradients", false, -1, plain,
       [own](const at::Tensor& tokens) { return forward(own->model(), tokens, false); }},
      {"packed", false, -1, plain, [own](const at::Tensor& tokens) { return forward_packed(own->model(), tokens); }}};
  const nsa::Call training = call_of(context, options, true);
  for (const OtherBackend& backend : backends(subject.flags(), training)) {
    ways.push_back({backend.way.title, false, -1, selection(backend.flags, training),
                    [backend, prepared = make(backend.flags)](const at::Tensor& tokens) {
                      Trace trace = forward(prepared->model(), tokens, true);
                      expect_route(*prepared, backend);
                      return trace;
                    }});
  }

  const std::int64_t S = options.S;
  const std::int64_t l = options.config.model.nsa.l;
  for (const std::int64_t P : std::set<std::int64_t>{0, 1, l - 1, l, l + 1, S / 2, S - 1, S}) {
    if (P < 0 || P > S) continue;
    const std::int64_t steps = P == 0 ? S : std::min(S - P, options.handover_steps);
    const std::string name = P == 0   ? fmt::format("decode all {} tokens", S)
                             : P == S ? fmt::format("prefill({})", S)
                                      : fmt::format("prefill({}) + {} steps", P, steps);
    ways.push_back({name, true, P, P == S ? std::optional(plain) : std::nullopt,
                    [&context, subject, own, P, steps](const at::Tensor& tokens) {
                      nsa::decode::Decoder decoder = subject.decoder(own->instance);
                      return decode(context, decoder, tokens.narrow(1, 0, P + steps), P);
                    }});
  }
  return ways;
}

}  // namespace suites::parity_cases
