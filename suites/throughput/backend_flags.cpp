#include "suites/throughput/backend_flags.hpp"

#include <stdexcept>
#include <string>

namespace suites::throughput_cases {

nsa::EffectiveFlags flags_of_backend(std::string_view name) {
  const bool flash = name.starts_with("flash"), reference = name == "reference", cuda = name == "cuda";
  if (!flash && !reference && !cuda && !name.starts_with("sdpa"))
    throw std::invalid_argument("flags_of_backend: unknown backend '" + std::string(name) + "'");
  nsa::EffectiveFlags flags;
  flags.fa2_all = flags.fa2_win = flags.fa2_cmp = flash;
  flags.sel_mask = name.ends_with("_masked");
  flags.sel_pack = !flags.sel_mask;
  flags.force_parity = reference;
  flags.use_cuda = cuda;
  return flags;
}

}  // namespace suites::throughput_cases
