#include "suites/probes/bit_trace.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/fnv1a.hpp"

namespace suites::probes {

std::string bits_of(const at::Tensor& value) {
  const at::Tensor bytes = value.detach().cpu().contiguous();
  std::uint64_t hash = base::fnv1a(
      base::kFnvOffset, fmt::format("{} {}", at::toString(bytes.scalar_type()), fmt::join(bytes.sizes(), ",")));
  hash = base::fnv1a(hash, {static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes()});
  return fmt::format("{:016x}", hash);
}

BitTrace::BitTrace(harness::Context& context, nsa::LanguageModelImpl& model) : context_(context), model_(model) {
  if (!context.settings().boolean("trace")) return;
  observing_.emplace(*model.runtime, [this](std::string_view name, const at::Tensor& value) { add(name, value); });
  for (const auto& item : model.named_parameters()) {
    if (!item.value().requires_grad()) continue;
    const auto add_gradient = [this, name = "gradient of " + item.key()](const at::Tensor& gradient) {
      add(name, gradient);
    };
    hooks_.emplace_back(item.value(), item.value().register_hook(add_gradient));
  }
}

BitTrace::~BitTrace() {
  for (const auto& [parameter, hook] : hooks_) parameter.remove_hook(hook);
}

void BitTrace::add(std::string_view name, const at::Tensor& value) {
  if (!wanted() || !value.defined()) return;
  std::string key(name);
  for (int again = 2; seen_.contains(key); ++again) key = fmt::format("{} #{}", name, again);
  seen_[key] = bits_of(value);
}

void BitTrace::add_parameters() {
  if (!wanted()) return;
  for (const auto& item : model_.named_parameters()) add("parameter " + item.key(), item.value());
}

void BitTrace::end_step(std::int64_t step) {
  if (!wanted()) return;
  context_.fact(fmt::format("trace/{}", step), seen_);
  seen_ = harness::Json::object();
}

}  // namespace suites::probes
