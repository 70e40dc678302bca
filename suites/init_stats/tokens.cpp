#include "suites/init_stats/tokens.hpp"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>

namespace suites::init_checks {

double rounding_of(nsa::Precision precision) {
  switch (precision) {
    case nsa::Precision::fp64:
      return 0x1p-53;
    case nsa::Precision::fp32:
      return 0x1p-24;
    case nsa::Precision::bf16:
      return 0x1p-8;
  }
  return 0;
}

at::Tensor random_tokens(const harness::Context& context, const ModelOptions& options, std::int64_t extra, int trial) {
  const nsa::Geometry& g = options.config.nsa;
  const std::int64_t S = std::max<std::int64_t>(256, 2 * g.w + g.l_sel + 3);
  auto generator = at::make_generator<at::CPUGeneratorImpl>(context.seed("tokens", trial));
  return at::randint(0, options.config.vocab, {1, S + extra}, generator, at::kLong).to(options.device);
}

}  // namespace suites::init_checks
