#include "suites/with_repro.hpp"

#include <exception>
#include <filesystem>
#include <utility>

#include "harness/codes.hpp"
#include "suites/codes.hpp"
#include "suites/implementation/repro.hpp"

namespace suites {

namespace {

using harness::Json;
using reports::Severity;

// A finding about time may yet be withheld, and is no matter of one call.
Severity severity_of(std::string_view code) {
  for (const harness::Code& row : finding_codes())
    if (row.id == code) return row.timed ? Severity::info : row.severity;
  return Severity::info;
}

}  // namespace

ContextWithRepro::ContextWithRepro(harness::Context& to, std::shared_ptr<implementation::Client> client,
                                   std::string case_id)
    : ForwardingContext(to), client_(std::move(client)), case_id_(std::move(case_id)) {}

void ContextWithRepro::finding(std::string_view code, std::string_view message, const Json& evidence) {
  ForwardingContext::finding(code, message, with_script(severity_of(code), evidence));
}

void ContextWithRepro::finding(std::string_view code, Severity severity, std::string_view message,
                               const Json& evidence) {
  ForwardingContext::finding(code, severity, message, with_script(severity, evidence));
}

void ContextWithRepro::conclude(const Comparison& comparison, std::string_view code, const std::string& what_failed,
                                const Json& evidence) {
  ForwardingContext::conclude(comparison, code, what_failed,
                              comparison.pass ? evidence : with_script(severity_of(code), evidence));
}

Json ContextWithRepro::with_script(Severity severity, Json evidence) {
  if (told_ || severity < Severity::warn || !client_ || !client_->last_call()) return evidence;
  told_ = true;  // also where it cannot be written: the next finding's last call is another
  if (Json script = written(); !script.is_null()) evidence["python"] = std::move(script);
  return evidence;
}

// Null where there is none. Whatever goes wrong here is no matter of the finding's.
Json ContextWithRepro::written() {
  std::string why = "an exception that is no std::exception";
  try {
    Json script = implementation::write_repro(*client_, run_folder(), case_id_);
    if (script.contains("script")) {
      const std::filesystem::path file = script["script"].get<std::string>();
      artifact(file);
      artifact(file.parent_path() / "inputs.pt");
    }
    return script;
  } catch (const std::exception& error) {
    why = error.what();
  } catch (...) {  // thrown by nothing that we know
  }
  fact("python repro", {{"not_written", why}});
  return nullptr;
}

}  // namespace suites
