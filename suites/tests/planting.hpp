// What the tests of suites share: something planted through the seams, and what a suite or one of its cases
// makes of it.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "suites/subject.hpp"
#include "suites/tests/recording_context.hpp"

namespace suites::tests {

using Codes = std::set<std::string>;
using OpsChange = std::function<nsa::Ops(nsa::Ops, const nsa::Call&)>;
using ModelChange = std::function<void(nsa::LanguageModelImpl&)>;

struct Planted {
  OpsChange ops = nullptr;
  ModelChange model = nullptr;  // runs without a graph
};

// A product with this planted; nullptr: a healthy one.
[[nodiscard]] std::shared_ptr<Seams> plant(const Planted& planted);
[[nodiscard]] std::shared_ptr<Seams> on_ops(OpsChange change);
[[nodiscard]] std::shared_ptr<Seams> on_model(ModelChange change);
[[nodiscard]] std::shared_ptr<Seams> on_configuration(std::function<void(nsa::Config&)> change);

[[nodiscard]] Codes just(std::string_view code);

// The grave codes of all cases, of which there is at least one and none threw.
[[nodiscard]] Codes grave_codes(const std::vector<RunCase>& ran);
// At least so many cases checked something and found nothing.
void expect_silent(const std::vector<RunCase>& ran, std::size_t at_least = 1);

[[nodiscard]] bool found(const RecordingContext& context, std::string_view code);
// Throws std::logic_error where there is none.
[[nodiscard]] const RecordingContext::Found& finding(const RecordingContext& context, std::string_view code);
[[nodiscard]] std::string listed(const RecordingContext& context);  // its findings, a line each

// The one case whose id ends in "/" and `name`. Throws std::logic_error where there is none.
[[nodiscard]] RecordingContext run_case(const harness::Suite& suite, const std::string& name,
                                        const harness::Settings& settings,
                                        const std::filesystem::path& folder = RecordingContext::usual_folder());

}  // namespace suites::tests
