// For the tests of the suite preflight: a run's folder, and a context that knows it.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>  // mkdtemp

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "nsa/config.hpp"
#include "suites/codes.hpp"
#include "suites/preflight/checks.hpp"
#include "suites/registry.hpp"
#include "suites/tests/recording_context.hpp"

namespace suites::preflight_tests {

namespace checks = preflight_checks;
using Codes = std::set<std::string>;
using tests::RecordingContext;

inline std::string code(std::string_view c) { return std::string(c); }

class Preflight : public ::testing::Test {
 protected:
  Preflight() : settings(tests::default_settings(preflight)), context(settings) {
    std::string pattern = (std::filesystem::temp_directory_path() / "preflight.XXXXXX").string();
    folder = mkdtemp(pattern.data());
    context.folder = folder;
    context.provenance["config"]["resolved"] = harness::Json(nsa::flatten(subject().config(context)));
  }
  ~Preflight() override { std::filesystem::remove_all(folder); }

  [[nodiscard]] Subject subject() const { return Subject(seams); }
  [[nodiscard]] Codes all_codes() const {
    Codes found;
    for (const auto& f : context.findings) found.insert(f.code);
    return found;
  }
  void write(const std::string& name, const std::string& text) const { std::ofstream(folder / name) << text; }

  std::shared_ptr<Seams> seams = std::make_shared<Seams>();
  harness::Settings settings;
  RecordingContext context;
  std::filesystem::path folder;
};

}  // namespace suites::preflight_tests
