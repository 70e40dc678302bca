// The set of the parameters, their random streams, seeds and gates.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/ranges.h>

#include <map>
#include <stdexcept>
#include <unordered_map>

#include "harness/compare.hpp"
#include "suites/codes.hpp"
#include "suites/init_stats/checks.hpp"
#include "suites/init_stats/law.hpp"

namespace suites::init_checks {

namespace {

constexpr double kGateDeviation = 1e-3;  // of a gate over tokens; 0.0025 and more with the laws' weights
constexpr std::int64_t kGateTokens = 256;

std::string shape_text(at::IntArrayRef shape) { return fmt::format("[{}]", fmt::join(shape, ",")); }

// dtype and device of a parameter or buffer, in words.
std::string placement(const at::Tensor& t) {
  return fmt::format("{} on {}", at::toString(t.scalar_type()), t.device().is_cuda() ? "cuda" : t.device().str());
}

// Bits of randomness that one value carries at least; a row needs 128 of them to be its own.
std::int64_t bits_per_value(nsa::Precision precision) { return precision == nsa::Precision::bf16 ? 8 : 23; }

}  // namespace

void parameter_set(Context& context, const ModelOptions& options, nsa::LanguageModelImpl& model) {
  std::map<std::string, std::vector<std::int64_t>> wanted;
  std::int64_t count = 0;
  for (const auto& e : init_laws::expected_parameters(options.config)) {
    wanted[e.name] = e.shape;
    count += c10::multiply_integers(e.shape);
  }
  Json wrong = Json::array(), misplaced = Json::array();
  const std::string place =
      placement(at::empty({0}, at::device(options.device).dtype(nsa::storage_type(options.precision))));
  std::int64_t found_count = 0;
  for (const auto& item : model.named_parameters()) {
    const at::Tensor& p = item.value();
    found_count += p.numel();
    const auto expected = wanted.find(item.key());
    if (expected == wanted.end()) {
      wrong.push_back(fmt::format("{} {} is not expected", item.key(), shape_text(p.sizes())));
    } else {
      if (p.sizes() != at::IntArrayRef(expected->second)) {
        wrong.push_back(
            fmt::format("{} is {}, expected {}", item.key(), shape_text(p.sizes()), shape_text(expected->second)));
      }
      wanted.erase(expected);
    }
    if (placement(p) != place) misplaced.push_back(fmt::format("{} is {}", item.key(), placement(p)));
  }
  for (const auto& item : model.named_buffers()) {
    const at::Tensor& b = item.value();
    if (b.device().type() != options.device.type())
      misplaced.push_back(fmt::format("{} is {}", item.key(), placement(b)));
  }
  for (const auto& [name, shape] : wanted) wrong.push_back(fmt::format("{} {} is missing", name, shape_text(shape)));

  context.metric("parameters", static_cast<double>(found_count), "1");
  context.expect("parameter_set", wrong.empty(),
                 fmt::format("{} parameter(s) are not as described; the first: {}", wrong.size(),
                             wrong.empty() ? "" : wrong.front().get<std::string>()),
                 codes::kParameterSet,
                 {{"difference", wrong.empty() ? Json("") : wrong.front()}, {"differences", wrong}});
  context.expect_equal("parameter_count", found_count, count, codes::kParameterSet);
  context.expect("placement", misplaced.empty(),
                 fmt::format("{} tensor(s) are not {}; the first: {}", misplaced.size(), place,
                             misplaced.empty() ? "" : misplaced.front().get<std::string>()),
                 codes::kParameterPlacement, {{"wanted", place}, {"misplaced", misplaced}});
}

void loaded_parameters(Context& context, const nsa::LanguageModel& model, std::uint64_t seed,
                       const LoadParameters& load) {
  const at::NoGradGuard no_grad;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  std::map<std::string, at::Tensor> given;
  std::map<std::string, at::ScalarType> types;
  for (const auto& item : model->named_parameters()) {
    types[item.key()] = item.value().scalar_type();
    // Half of them need no rounding and lie where the parameters do: still they are copied.
    const at::Tensor drawn = at::randn(item.value().sizes(), generator, at::TensorOptions(at::kDouble));
    given[item.key()] = given.size() % 2 == 0 ? drawn : drawn.to(item.value().options());
  }
  load(model, given);
  Json wrong = Json::array();
  for (const auto& item : model->named_parameters()) {
    const at::Tensor& tensor = given.at(item.key());
    const at::Tensor own = item.value().cpu(), wanted = tensor.cpu().to(types.at(item.key()));
    if (own.scalar_type() != wanted.scalar_type())
      wrong.push_back(fmt::format("{} is {} afterwards, and was {}", item.key(), c10::toString(own.scalar_type()),
                                  c10::toString(wanted.scalar_type())));
    else if (item.value().is_alias_of(tensor))
      wrong.push_back(fmt::format("{} shares its memory with the tensor that was loaded", item.key()));
    else if (own.sizes() != wanted.sizes() || !at::equal(own, wanted))
      wrong.push_back(fmt::format("{} is off by up to {:.3g}", item.key(),
                                  (own.to(at::kDouble) - wanted.to(at::kDouble)).abs().max().item<double>()));
  }
  context.expect("loaded_parameters", wrong.empty(),
                 fmt::format("{} parameter(s) are not what was loaded into them; the first: {}", wrong.size(),
                             wrong.empty() ? "" : wrong.front().get<std::string>()),
                 codes::kParameterSet, {{"loaded", wrong}, {"first", wrong.empty() ? Json("") : wrong.front()}});
}

void streams(Context& context, const ModelOptions& options, nsa::LanguageModelImpl& model) {
  const at::NoGradGuard no_grad;
  const auto parameters = model.named_parameters();
  const std::int64_t shortest = 128 / bits_per_value(options.precision);
  std::unordered_map<std::size_t, std::string> first_seen;  // hash of the row's bytes -> where
  Json pairs = Json::array();
  std::int64_t rows_seen = 0;
  for (const auto& e : init_laws::expected_parameters(options.config)) {
    const at::Tensor* found = parameters.find(e.name);
    if (found == nullptr || !e.law.random()) continue;
    context.progress();
    const at::Tensor host = found->detach().cpu().contiguous();
    const std::int64_t rows = host.dim() > 1 ? host.size(0) : 1, width = host.numel() / rows;
    if (width < shortest) continue;
    const auto* bytes = static_cast<const char*>(host.const_data_ptr());
    const std::size_t row_bytes = static_cast<std::size_t>(width) * host.element_size();
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::string_view content(bytes + static_cast<std::size_t>(row) * row_bytes, row_bytes);
      if (content.find_first_not_of('\0') == std::string_view::npos) continue;  // all zero is a question of the law
      ++rows_seen;
      const std::string here = fmt::format("{}[{}]", e.name, row);
      const auto [at, fresh] = first_seen.try_emplace(std::hash<std::string_view>{}(content), here);
      if (!fresh) pairs.push_back({at->second, here});
    }
  }
  context.metric("rows_compared", static_cast<double>(rows_seen), "1");
  const std::size_t count = pairs.size();
  const std::string first =
      count == 0 ? "" : fmt::format("{} and {}", pairs[0][0].get<std::string>(), pairs[0][1].get<std::string>());
  if (pairs.size() > 16) pairs.erase(pairs.begin() + 16, pairs.end());
  context.expect(
      "random_streams", count == 0,
      fmt::format("{} row(s) hold the bits of another one: {}; a random stream was used twice", count, first),
      codes::kStreamReused, {{"pairs", pairs}, {"count", count}});
}

void gates(Context& context, const ModelOptions& options, nsa::LanguageModelImpl& model) {
  skip_replaced_gates(context, options);
  const at::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> seen;
  model.runtime->observe = [&](std::string_view name, const at::Tensor& value) {
    if (name.ends_with(".attention.gates")) seen[std::string(name)] = value.detach();
  };
  auto generator = at::make_generator<at::CPUGeneratorImpl>(context.seed("tokens"));
  const at::Tensor tokens = at::randint(0, options.config.vocab, {1, kGateTokens}, generator, at::kLong);
  context.phase("forward");
  (void)model.forward(tokens.to(options.device));
  model.runtime->observe = nullptr;
  if (static_cast<std::int64_t>(seen.size()) != options.config.n_layers) {
    throw std::runtime_error(
        fmt::format("gates of {} layers were observed, the model has {}", seen.size(), options.config.n_layers));
  }
  Json table = Json::object(), uniform = Json::array();
  double smallest = 1;
  for (const auto& [name, value] : seen) {
    const at::Tensor g = value.to(at::kDouble).flatten(0, 1);  // [tokens, G, 3]
    if (!g.isfinite().all().item<bool>()) {
      context.finding(codes::kNonFiniteForward, fmt::format("{} is not finite", name), {{"stage", name}});
      return;
    }
    // Over tokens; then over groups and branches, so that one lively group does not speak for all.
    const double deviation = g.std(0).mean().item<double>();
    const at::Tensor mean = g.mean(0).mean(0);
    table[name] = {{"std_over_tokens", reports::number(deviation)},
                   {"mean", {mean[0].item<double>(), mean[1].item<double>(), mean[2].item<double>()}}};
    smallest = std::min(smallest, deviation);
    if (!harness::at_least(deviation, kGateDeviation)) uniform.push_back(name);
  }
  context.fact("gates", table);
  context.metric("gate_std_smallest", smallest, "1");
  context.expect("gates.per_token", uniform.empty(),
                 fmt::format("in {} of {} layers the gates vary by less than {} from token to token (smallest standard "
                             "deviation {:.3g})",
                             uniform.size(), options.config.n_layers, kGateDeviation, smallest),
                 codes::kGateUniform, {{"layers", uniform}, {"bound", kGateDeviation}, {"gates", table}});
}

void seeds(const Subject& subject, Context& context, const ModelOptions& options) {
  const at::NoGradGuard no_grad;
  ModelOptions other_seed = options;
  other_seed.seed = options.seed + 1;
  Instance first = subject.model(options), again = subject.model(options), other = subject.model(other_seed);
  const auto b = again.model->named_parameters(), c = other.model->named_parameters();
  Json differ = Json::array(), stay = Json::array();
  std::map<std::string, bool> random;
  for (const auto& e : init_laws::expected_parameters(options.config)) random[e.name] = e.law.random();
  for (const auto& item : first.model->named_parameters()) {
    context.progress();
    if (!at::equal(item.value(), b[item.key()])) differ.push_back(item.key());
    const bool all_zero = item.value().count_nonzero().item<std::int64_t>() == 0;  // a question of the law, see laws
    if (random[item.key()] && !all_zero && at::equal(item.value(), c[item.key()])) stay.push_back(item.key());
  }
  if (options.device.is_cpu()) {  // elsewhere another generator would draw
    // What a seam does to a new model, reset_parameters() does not do again.
    const Subject product(std::make_shared<Seams>());
    Instance made = product.model(options), reset = product.model(other_seed);
    torch::manual_seed(options.seed);
    reset.model->reset_parameters();
    Json other_draw = Json::array();
    const auto anew = reset.model->named_parameters();
    for (const auto& item : made.model->named_parameters())
      if (!at::equal(item.value(), anew[item.key()])) other_draw.push_back(item.key());
    context.expect(
        "seed.reset_parameters", other_draw.empty(),
        fmt::format("{} parameter(s) differ between a new model and one that reset_parameters() drew anew from "
                    "the same seed",
                    other_draw.size()),
        codes::kSeedBits, {{"parameters", other_draw}, {"seed", options.seed}});
  }
  context.expect("seed.same_bits", differ.empty(),
                 fmt::format("{} parameter(s) differ between two models of seed {}", differ.size(), options.seed),
                 codes::kSeedBits, {{"parameters", differ}, {"seed", options.seed}});
  context.expect(
      "seed.other_bits", stay.empty(),
      fmt::format("{} random parameter(s) are the same for two seeds: they do not depend on it", stay.size()),
      codes::kSeedBits, {{"parameters", stay}, {"seeds", {options.seed, other_seed.seed}}});
}

}  // namespace suites::init_checks
