// What autograd says when something that it kept for the backward pass was written in place.
#pragma once

#include <c10/util/Exception.h>

#include <optional>
#include <string>

#include "harness/context.hpp"

namespace suites::probes {

struct InplaceWrite {
  std::string made_by;  // the operation whose output was overwritten: "AsStridedBackward0"; "" when it says none
  std::string tensor;   // "[torch.FloatTensor [2, 8]]"
  std::string message;  // autograd's first line
};
// Nothing when `error` is about something else.
[[nodiscard]] std::optional<InplaceWrite> inplace_write(const c10::Error& error);

// Raises kInplaceWrite and returns false. Where many passes were refused, call it once and say in `evidence` how many.
// `where`: what was written, when somebody watched; the message begins with it, autograd's own words come behind.
bool report_inplace_write(harness::Context& context, const InplaceWrite& write,
                          harness::Json evidence = harness::Json::object(), const std::string& where = "");

// Raises kInplaceWrite, or rethrows the current exception when it is about something else. Call it in the handler.
// Returns false, for `return report_inplace_write(...)`.
bool report_inplace_write(harness::Context& context, const c10::Error& error,
                          harness::Json evidence = harness::Json::object(), const std::string& where = "");

}  // namespace suites::probes
