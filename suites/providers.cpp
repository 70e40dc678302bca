// The providers that ask neither LibTorch nor CUDA; the others: device.cpp.
#include "suites/providers.hpp"

#include "nsa/config.hpp"
#include "nsa/flags.hpp"
#include "nsa/parallel/world.hpp"
#include "suites/locations.hpp"
#include "suites/machine/variables.hpp"

namespace suites {

using harness::Json;

namespace {

// What each rank of the suite distributed would refuse in its environment, which it has from this process.
void validate_ranks() {
  nsa::parallel::World world;
  world.address = "127.0.0.1";
  world.port = 1;
  base::Environment environment = nsa::parallel::environment_of(world);
  environment.merge(base::environment());
  if (const std::string why = nsa::parallel::why_no_interface(nsa::parallel::world_of(environment)); !why.empty())
    throw harness::UsageError(why);
}

}  // namespace

harness::Json provenance(const harness::Settings& settings) {
  Json flags = Json::object();
  const nsa::Environment environment = nsa::read_environment();
  for (const auto& [name, value] : environment) flags["set"][name] = value;
  const nsa::EffectiveFlags effective = nsa::resolve(environment);
  for (const auto& [field, value] : nsa::flatten(effective))
    flags["effective"][field] = {{"value", value}, {"origin", nsa::origin_of(effective, field).text}};
  const std::filesystem::path file = model_file(settings);
  Json resolved = Json::object();
  std::string canonical;
  for (const auto& [key, value] : nsa::flatten(model_config(settings))) {
    resolved[key] = value;
    canonical += key + "=" + value + "\n";
  }
  return {{"flags", flags},
          {"config", {{"file", file.string()}, {"hash", harness::case_hash(canonical)}, {"resolved", resolved}}}};
}

void validate(const harness::Settings& settings) {
  try {
    const nsa::Config config = model_config(settings);
    if (const std::string expected = settings.text("preflight.expect"); !expected.empty())
      (void)nsa::drift(config, expected);  // the file can be read
    const nsa::Environment environment = nsa::read_environment();
    const machine::PinnedFacts facts = machine::pinned_facts(Json::object(), environment);  // the flags make sense
    for (const std::string& pin : settings.texts("preflight.expect_environment"))
      if (const std::string reason = machine::bad_pin(pin, facts); !reason.empty())
        throw harness::UsageError("preflight.expect_environment: " + reason);
    validate_ranks();
  } catch (const nsa::ConfigInvalid& error) {
    throw harness::UsageError(error.what());
  } catch (const nsa::FlagInvalid& error) {
    throw harness::UsageError(error.what());
  } catch (const base::EnvironmentInvalid& error) {
    throw harness::UsageError(error.what());
  }
}

}  // namespace suites
