#include "suites/tests/planting.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace suites::tests {

namespace {

auto find(const RecordingContext& context, std::string_view code) {
  return std::find_if(context.findings.begin(), context.findings.end(), [&](const auto& f) { return f.code == code; });
}

}  // namespace

std::shared_ptr<Seams> plant(const Planted& planted) {
  auto seams = std::make_shared<Seams>();
  if (planted.ops) seams->ops.push_back(planted.ops);
  if (planted.model)
    seams->model.push_back([change = planted.model](nsa::LanguageModelImpl& model) {
      const at::NoGradGuard no_grad;
      change(model);
    });
  return seams;
}

std::shared_ptr<Seams> on_ops(OpsChange change) { return plant({.ops = std::move(change)}); }
std::shared_ptr<Seams> on_model(ModelChange change) { return plant({.model = std::move(change)}); }

std::shared_ptr<Seams> on_configuration(std::function<void(nsa::Config&)> change) {
  auto seams = std::make_shared<Seams>();
  if (change) seams->configuration.push_back(std::move(change));
  return seams;
}

Codes just(std::string_view code) { return {std::string(code)}; }

Codes grave_codes(const std::vector<RunCase>& ran) {
  EXPECT_FALSE(ran.empty());
  Codes all;
  for (const RunCase& c : ran) {
    EXPECT_EQ(c.exception, "") << c.id;
    all.merge(c.context.grave_codes());
  }
  return all;
}

void expect_silent(const std::vector<RunCase>& ran, std::size_t at_least) {
  EXPECT_GE(ran.size(), at_least);
  for (const RunCase& c : ran) {
    EXPECT_EQ(c.exception, "") << c.id;
    EXPECT_TRUE(c.context.findings.empty()) << c.id << "\n" << listed(c.context);
    EXPECT_GT(c.context.checks, 0) << c.id;
  }
}

bool found(const RecordingContext& context, std::string_view code) {
  return find(context, code) != context.findings.end();
}

const RecordingContext::Found& finding(const RecordingContext& context, std::string_view code) {
  const auto it = find(context, code);
  if (it == context.findings.end()) throw std::logic_error("no finding " + std::string(code));
  return *it;
}

std::string listed(const RecordingContext& context) {
  std::string text;
  for (const auto& f : context.findings) text += f.code + ": " + f.message + "\n";
  return text;
}

RecordingContext run_case(const harness::Suite& suite, const std::string& name, const harness::Settings& settings,
                          const std::filesystem::path& folder) {
  for (const harness::Case& c : suite.cases(settings)) {
    const std::string id = harness::case_id(suite.name, c);
    if (id != suite.name + "/" + name) continue;
    RecordingContext context(settings, id);
    context.folder = folder;
    c.run(context);
    return context;
  }
  throw std::logic_error("no case " + suite.name + "/" + name);
}

}  // namespace suites::tests
