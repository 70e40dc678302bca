#include "nsa/train/run/tests/ranks_runner.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <sstream>
#include <thread>

namespace nsa::train::testing {

Arguments with(Arguments first, const Arguments& more) {
  first.insert(first.end(), more.begin(), more.end());
  return first;
}

std::vector<std::vector<double>> table(const fs::path& run) {
  std::vector<std::vector<double>> rows;
  for (const std::string& line : lines(run / "metrics.csv")) {
    if (line.starts_with("step")) continue;
    std::istringstream cells(line + ",");
    std::vector<double>& row = rows.emplace_back();
    for (std::string cell; std::getline(cells, cell, ',');)
      row.push_back(cell.empty() ? std::nan("") : std::stod(cell));
  }
  return rows;
}

void expect_same_run(const Place& one, const Place& several, std::size_t steps) {
  constexpr double kRounding = 2e-6;
  constexpr std::size_t kStep = 0, kLoss = 1, kNorm = 3, kTokens = 8, kValidation = 10;
  const auto left = table(one.run()), right = table(several.run());
  ASSERT_EQ(left.size(), steps);
  ASSERT_EQ(right.size(), steps);
  for (std::size_t i = 0; i < steps; ++i) {
    EXPECT_EQ(left[i][kStep], right[i][kStep]);
    EXPECT_EQ(left[i][kTokens], right[i][kTokens]);
    for (const std::size_t column : {kLoss, kNorm})
      EXPECT_NEAR(left[i][column] / right[i][column], 1, kRounding) << "step " << i + 1 << ", column " << column;
    EXPECT_EQ(std::isnan(left[i][kValidation]), std::isnan(right[i][kValidation]));
    if (!std::isnan(left[i][kValidation])) {
      EXPECT_NEAR(left[i][kValidation] / right[i][kValidation], 1, kRounding);
    }
  }
}

void wait_for_rows(const Place& place, std::size_t rows) {
  for (int i = 0; i < 600 && lines(place.run() / "metrics.csv").size() <= rows; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  ASSERT_GT(lines(place.run() / "metrics.csv").size(), rows);
}

std::vector<std::string> left_of(const Place& place) {
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    if (entry.path().filename().string().find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string line = content(entry.path() / "cmdline");
    std::string state = content(entry.path() / "stat");
    state = state.substr(std::min(state.size(), state.rfind(')') + 2), 1);
    if (line.find(place.run().string()) != std::string::npos && state != "Z") found.push_back(entry.path().filename());
  }
  return found;
}

pid_t process_of(const Place& place, int rank) {
  for (const std::string& pid : left_of(place)) {
    std::istringstream variables(content(fs::path("/proc") / pid / "environ"));
    for (std::string one; std::getline(variables, one, '\0');)
      if (one == "RANK=" + std::to_string(rank)) return static_cast<pid_t>(std::stol(pid));
  }
  return 0;
}

void expect_all_stopped_at_one_step(const Place& place, const Outcome& outcome) {
  const auto last = std::to_string(lines(place.run() / "metrics.csv").size() - 1);
  EXPECT_THAT(outcome.last_line(), ::testing::HasSubstr("step=" + last + " "));
  EXPECT_EQ(records(place.run() / "ranks" / "rank_1", "finished").at(0)["step"], std::stoi(last));
}

}  // namespace nsa::train::testing
