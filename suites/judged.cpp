#include "suites/judged.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "harness/journal_writer.hpp"
#include "suites/locations.hpp"

namespace suites {

namespace {

namespace fs = std::filesystem;
using implementation::Client;
using implementation::ImplementationError;

// Of an error before anything was judged: what the user can mend himself, and what his machine lacks.
[[noreturn]] void refuse(const harness::Settings& settings, const ImplementationError& error) {
  const std::string said = fmt::format("--implementation {}: {}\n`nsa-validate adapter check {}` says more",
                                       settings.text("implementation"), error.what(), settings.text("implementation"));
  if (error.kind == "description" || error.kind == "protocol") throw harness::UsageError(said);
  throw harness::InfrastructureError(said);
}

}  // namespace

std::shared_ptr<Client> implementation_of(const harness::Settings& settings) {
  if (!judges_implementation(settings)) return nullptr;
  Client::Options options;
  options.python = settings.text("python");
  options.host = data_folder() / "adapters" / "host" / "host.py";
  options.adapter = settings.text("implementation");
  options.call = Client::Seconds(settings.real("python_timeout_s"));
  return std::make_shared<Client>(options);
}

reports::Json described_implementation(const harness::Settings& settings) {
  const auto client = implementation_of(settings);
  if (!client) return nullptr;
  std::error_code unknown;  // what cannot be looked at is no file
  if (const std::string file = settings.text("implementation"); !fs::is_regular_file(file, unknown))
    throw harness::UsageError(
        fmt::format("--implementation: '{}' is no file; `nsa-validate adapter new FILE` writes "
                    "one to begin with",
                    file));
  try {
    const implementation::Description& d = client->describe();
    return {
        {"name", d.name},     {"version", d.version}, {"computes", d.computes},      {"file", d.file},
        {"python", d.python}, {"torch", d.torch},     {"interpreter", d.executable}, {"claims", client->described()}};
  } catch (const ImplementationError& error) {
    refuse(settings, error);
  }
}

}  // namespace suites
