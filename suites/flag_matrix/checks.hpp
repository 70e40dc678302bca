// The checks of the flag matrix.
#pragma once

#include <vector>

#include "harness/context.hpp"
#include "suites/flag_matrix/execution.hpp"
#include "suites/flag_matrix/truth_table.hpp"
#include "suites/subject.hpp"

namespace suites::flag_checks {

using harness::Context;
using harness::Json;

// -- effective.cpp: what the flags mean, by the written tables
void fa2_truth_table(Context& context);    // all 27 settings
void settings_in_force(Context& context);  // each single setting, and every spelling of a boolean
void illegal_settings(Context& context);   // refused, with variable and value in the message; typos named

// -- witnessed.cpp: what they do, by the operations that ran
// Every setting by itself, without and with gradients.
void singles(const Subject& subject, Context& context, const flag_execution::Plan& plan);
// Every pair of settings that may stand together; those that contradict must be refused.
void pairs(const Subject& subject, Context& context, const flag_execution::Plan& plan);
// The 27 FlashAttention-2 settings, executed.
void fa2_executed(const Subject& subject, Context& context, const flag_execution::Plan& plan);

}  // namespace suites::flag_checks
