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

// -- cover.cpp: all variables together
// Every pair of values of every two variables stands in some row, or must be refused; the coverage figure.
void cover_array(Context& context);
// Value and origin of every effective field, for every row, every single setting and the 27 of FlashAttention-2.
void origins(Context& context);
// Every row executed in one situation (batch, length), with and without gradients.
void cover(const Subject& subject, Context& context, const flag_execution::Plan& plan);

// -- contracts.cpp: what FlashAttention-2 must never be given is refused before anything runs
void contracts(const Subject& subject, Context& context, const flag_execution::Plan& plan);

// -- capabilities.cpp: the tables that say which calls FlashAttention-2 and our own kernels serve; part of contracts
void capabilities(Context& context, const flag_execution::Plan& plan);

// -- construction.cpp: what a change of the environment does to a model that exists, and to one that is made afterwards
void after_construction(const Subject& subject, Context& context, const flag_execution::Plan& plan);

}  // namespace suites::flag_checks
