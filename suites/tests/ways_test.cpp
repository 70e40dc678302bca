// The table of ways: every row is whole, chooses what it says, and shows where it says.
#include "suites/ways.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <stdexcept>

namespace suites {
namespace {

// What a CPU in training would be asked; no GPU is looked at.
nsa::Call training_call() {
  nsa::Call call;
  call.S = 128;
  call.Hq = 4;
  call.G = 2;
  call.training = true;
  return call;
}

std::vector<nsa::Taken> record_of(const nsa::Route& route) {
  std::vector<nsa::Taken> record;
  for (const nsa::Op op : nsa::kAllOps) record.push_back({op, route[op], 1});
  return record;
}

TEST(Ways, EveryRowIsWholeAndHasANameOfItsOwn) {
  std::set<std::string> names;
  for (const Way& way : ways()) {
    EXPECT_TRUE(names.insert(way.name).second) << way.name;
    EXPECT_EQ(&way_named(way.name), &way);
    for (const nsa::Op op : nsa::kAllOps) EXPECT_TRUE(way.parts.contains(op)) << way.name << ": " << to_string(op);
    EXPECT_FALSE(way.shown_by.empty()) << way.name;
    EXPECT_EQ(way.ops.empty(), way.dtypes.empty()) << way.name;
  }
  EXPECT_THROW((void)way_named("triton"), std::out_of_range);
}

TEST(Ways, WhatRunsWithoutAGpuIsRoutedAsItsRowSays) {
  for (const Way& way : ways()) {
    if (way.needs_cuda) continue;
    nsa::Call call = training_call();
    call.training = way.gradients;
    const nsa::Route route = nsa::route(way.flags(), call);
    for (const nsa::Op op : nsa::kAllOps)
      EXPECT_TRUE(way.parts.at(op).holds(route[op])) << way.name << ": " << to_string(op) << " is "
                                                     << to_string(route[op]) << ", not " << to_string(way.parts.at(op));
    EXPECT_TRUE(took(record_of(route), way)) << way.name;
  }
}

TEST(Ways, ARecordShowsNoOtherWay) {
  const auto masked = record_of(nsa::route(way_named("sdpa_masked").flags(), training_call()));
  for (const char* other : {"sdpa", "reference", "flash", "cuda"})
    EXPECT_FALSE(took(masked, way_named(other))) << other;
  EXPECT_FALSE(took({}, way_named("sdpa")));
  // A GPU's way that was refused has run as sdpa.
  const auto refused = record_of(nsa::route(way_named("cuda").flags(), training_call()));
  EXPECT_FALSE(took(refused, way_named("cuda")));
  EXPECT_TRUE(took(refused, way_named("sdpa")));
}

TEST(Ways, OfAModelAreCalledByTheirTitlesAndRefusedByTheirFeatureTables) {
  std::set<std::string> titles;
  for (const Way* way : model_ways(Way::OfModel::measured)) {
    EXPECT_FALSE(way->title.empty()) << way->name;
    EXPECT_TRUE(titles.insert(way->title).second) << way->title;
    EXPECT_EQ(way->refusal(training_call()).find("device is cpu") == 0, way->needs_cuda) << way->name;
  }
  const std::vector<const Way*> checked = model_ways(Way::OfModel::checked);
  EXPECT_LT(checked.size(), titles.size());
  for (const nsa::Backend backend : nsa::kAllBackends)
    EXPECT_TRUE(std::any_of(checked.begin(), checked.end(),
                            [&](const Way* way) { return way->parts.at(way->shown_by.front()).backend == backend; }))
        << to_string(backend) << ": no check of a model goes through it";
}

TEST(Ways, LeaveOtherFlagsAlone) {
  nsa::EffectiveFlags asked;
  asked.uniform_gate = asked.strict_asserts = true;
  asked.rope_scale = 4;
  for (const Way& way : ways()) {
    auto fields = nsa::flatten(way.flags(asked)), plain = nsa::flatten(way.flags());
    for (const char* kept : {"uniform_gate", "strict_asserts", "rope_scale"}) {
      EXPECT_EQ(fields.at(kept), nsa::flatten(asked).at(kept)) << way.name;
      fields.erase(kept);
      plain.erase(kept);
    }
    EXPECT_EQ(fields, plain) << way.name << " depends on what was asked before";
  }
}

TEST(Ways, TakeBackWhatAnotherWayAskedFor) {
  for (const Way& before : ways())
    for (const Way& way : ways())
      EXPECT_EQ(nsa::flatten(way.flags(before.flags())), nsa::flatten(way.flags()))
          << way.name << " after " << before.name;
}

TEST(Ways, AskForNothingElse) {
  nsa::EffectiveFlags asked;
  asked.sel_mask = asked.fa2_force_varlen = true;
  asked.fa2_min_len_win = 7;
  nsa::EffectiveFlags flash = asked;
  way_named("flash").ask(flash, true);
  EXPECT_TRUE(flash.fa2_all && flash.fa2_win && flash.fa2_cmp);
  EXPECT_TRUE(flash.sel_mask && flash.fa2_force_varlen);
  EXPECT_EQ(flash.fa2_min_len_win, 7);
  way_named("flash").ask(flash, false);
  EXPECT_EQ(nsa::flatten(flash), nsa::flatten(asked));
}

TEST(Ways, AreFoundByTheFlagsThatAskForTheirBackend) {
  for (const Way& way : ways()) {
    const nsa::Backend backend = way.parts.at(way.shown_by.front()).backend;
    const Way &found = asked_for(way.flags(), true), &without_gpu = asked_for(way.flags(), false);
    EXPECT_EQ(found.parts.at(found.shown_by.front()).backend, backend) << way.name;
    EXPECT_EQ(without_gpu.name, way.needs_cuda ? "sdpa" : found.name) << way.name;
  }
}

}  // namespace
}  // namespace suites
