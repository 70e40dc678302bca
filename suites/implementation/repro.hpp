// The last call of an implementation as a script of its own: it needs Python, torch and the adapter, and
// nothing of ours.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "suites/implementation/client.hpp"

namespace suites::implementation {

// Files with larger tensors are not written.
inline constexpr std::int64_t kMostSaved = std::int64_t{256} << 20;  // bytes

// "attend_window(q [1, 63, 48, 64] bf16, ..., 3 documents, l = 32, d = 16, ...) and its gradients"
[[nodiscard]] std::string words(const Made& call);

// What our reference gives in fp64 for the same inputs, in the form in which an implementation of this description
// gives it (base of lse, meaning of w): outputs, and "gradient of NAME" where there are cotangents. fp32, or fp64 for
// fp64 inputs. Empty for a call that was not answered, and for one that takes the reference too long: it looks at
// every pair of tokens.
[[nodiscard]] Named expected_of(const Made& call, const Description& description);

// Writes the last call to artifacts/SLUG/repro.py and inputs.pt in the run's folder. What a finding says of it:
// {"script": path in the run's folder, "command", "call"}, or {"not_written": why} where its tensors are too large.
// Throws std::exception with the reason where it cannot be written: no call, inputs that were written to since, no
// process, no folder.
[[nodiscard]] Json write_repro(Client& client, const std::filesystem::path& run_folder, const std::string& case_id);

}  // namespace suites::implementation
