// What an implementation says of itself, and so what it may be asked.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nsa/route.hpp"
#include "suites/implementation/limits.hpp"

namespace suites::implementation {

enum class LseBase { none, e, two };

struct Description {
  std::string name, version;
  std::vector<std::string> computes;  // names of nsa::Op, and "attention": all of it, with shared keys and values
  std::vector<std::string> devices, dtypes, layouts;  // "cpu", "cuda"; as wire_name(); "batched", "packed"
  bool gradients = false;
  // "" and none stand for what matters to nothing that it computes.
  std::string window;  // "w" or "w+1": how many tokens a token sees there, itself included
  // Blocks that are always chosen: the first ones, and the last ones up to the token's own.
  struct Forced {
    std::int64_t first = 1, last = 2;
  };
  std::optional<Forced> forced;
  std::string ties;             // "lower", "higher", "any": which of two equally important blocks is chosen
  std::string importance;       // "paper", or words: then its choice itself is not comparable
  bool own_block = false;       // attend_selected takes only choices that hold the token's own block
  bool empty_documents = true;  // in a packed batch
  bool shared_kv = false;
  LseBase lse = LseBase::none;
  bool repeatable = true;
  Limits limits;

  // Of the process that serves it.
  std::string python, torch, executable, file;
  bool cuda = false;  // its torch sees a GPU

  [[nodiscard]] bool computes_function(std::string_view function) const;
  // nsa::Op::attend also by "attention".
  [[nodiscard]] bool claims(nsa::Op op) const;
};

// From the host's answer to "describe". Throws ImplementationError "description" where it lists mistakes, "protocol"
// where a key is not there or of another type. Whether the values make sense is the host's to judge.
[[nodiscard]] Description description_from(const Json& answer);

// What two descriptions, as the host gave them, say differently: KEY: {"was", "is"}, null where one lacks the key.
[[nodiscard]] Json differences(const Json& before, const Json& now);
// The same in words: `KEY = "a", it was "b"; ...`; "" where nothing differs.
[[nodiscard]] std::string words_of(const Json& differences);

// A call, as far as it matters whether it is claimed.
struct Wanted {
  nsa::Op op = nsa::Op::attend;
  Sizes sizes;
  at::ScalarType dtype = at::kFloat;
  at::DeviceType device = at::kCPU;
  bool packed = false;     // `combine` sees no documents
  bool gradients = false;  // are needed; of `select` nobody needs any
};
// nsa::Precision::bf16 is bf16.
[[nodiscard]] Wanted wanted(nsa::Op op, const nsa::Call& call);

// Why the implementation does not claim the call, all reasons in words; "" when it does.
[[nodiscard]] std::string refusal(const Description& description, const Wanted& call);

}  // namespace suites::implementation
