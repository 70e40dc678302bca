#include "suites/probes/tokens.hpp"

#include "nsa/train/text.hpp"
#include "suites/subject.hpp"

namespace suites::probes {

at::Tensor text_tokens(const harness::Context& context, const nsa::Config& config, TokenShape shape, int trial) {
  const at::Tensor bytes = nsa::train::read_bytes(text_file(context.settings(), config));
  return nsa::train::RandomCrops(bytes, shape.B, shape.S, context.seed("tokens", trial)).next().to(device_of(context));
}

}  // namespace suites::probes
