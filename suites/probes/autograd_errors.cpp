#include "suites/probes/autograd_errors.hpp"

#include <fmt/format.h>

#include <regex>

#include "base/text.hpp"
#include "suites/codes.hpp"

namespace suites::probes {

std::optional<InplaceWrite> inplace_write(const c10::Error& error) {
  const std::string text = error.what_without_backtrace();
  if (text.find("modified by an inplace operation") == std::string::npos) return std::nullopt;
  InplaceWrite write;
  write.message = base::first_line(text);
  std::smatch match;
  if (std::regex_search(text, match, std::regex(R"(is output \d+ of (\w+))"))) write.made_by = match[1];
  if (std::regex_search(text, match, std::regex(R"(operation: (\[[^\]]*\]\]))"))) write.tensor = match[1];
  return write;
}

bool report_inplace_write(harness::Context& context, const InplaceWrite& write, harness::Json evidence,
                          const std::string& where) {
  evidence["overwritten_output_of"] = write.made_by;
  evidence["tensor"] = write.tensor;
  evidence["autograd"] = write.message;
  return context.expect("nothing kept for the backward pass is overwritten", false,
                        fmt::format("{}backward refused: {}, output of {}, was modified in place after it was saved",
                                    where.empty() ? "" : where + "; ", write.tensor.empty() ? "a tensor" : write.tensor,
                                    write.made_by.empty() ? "a leaf or an unnamed operation" : write.made_by),
                        codes::kInplaceWrite, evidence);
}

bool report_inplace_write(harness::Context& context, const c10::Error& error, harness::Json evidence,
                          const std::string& where) {
  const std::optional<InplaceWrite> write = inplace_write(error);
  if (!write) throw;
  return report_inplace_write(context, *write, std::move(evidence), where);
}

}  // namespace suites::probes
