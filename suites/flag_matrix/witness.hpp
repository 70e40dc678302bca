// Do the operations that ran agree with the flags that were set?
#pragma once

#include <map>
#include <string>
#include <vector>

#include "reports/json.hpp"
#include "suites/flag_matrix/execution.hpp"
#include "suites/flag_matrix/truth_table.hpp"

namespace suites::flag_witness {

// What every execution of one gradient mode is compared with.
struct Yardstick {
  bool training = false;
  std::map<std::string, std::vector<flag_footprint::Footprint>> ways;  // of each attention
  flag_execution::Execution plain;                                     // without any flag, by backends called by name
};
// Two ways of one op that run the same operations here ("attend_window: a and b"): between them nothing can be told.
[[nodiscard]] std::vector<std::string> blind_spots(const Yardstick& yardstick);
// Takes the measure without the product's routing: a model whose ops table is put together here, by name.
[[nodiscard]] Yardstick measure(const flag_execution::Plan& plan, bool training);

struct Disagreement {
  std::string_view code;
  std::string what;
  reports::Json evidence;
};
[[nodiscard]] std::vector<Disagreement> judge(const nsa::Environment& environment, const Yardstick& yardstick,
                                              const flag_execution::Execution& seen, const flag_execution::Plan& plan);

}  // namespace suites::flag_witness
