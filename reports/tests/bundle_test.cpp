// Bundles as data: what of a run is in one, when two failures are the same, and that a damaged one is never read.
#include "reports/bundle.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reports/journal.hpp"
#include "reports/schema.hpp"
#include "reports/tests/support/schema_validator.hpp"
#include "reports/writers.hpp"

namespace reports {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

Finding finding(const std::string& code, Severity severity, Json evidence) {
  Finding f;
  f.code = code;
  f.severity = severity;
  f.title = code;
  f.message = "seen";
  f.evidence = std::move(evidence);
  return f;
}

Case failed(std::vector<Finding> findings) {
  Case c;
  c.id = "s_sweep/length[S=512]";
  c.suite = "s_sweep";
  c.level = "smoke";
  c.status = Status::fail;
  c.findings = std::move(findings);
  c.facts = Json::object();
  return c;
}

Run run_that_has(const Case& c) {
  Run run;
  run.id = "r1";
  run.level = "smoke";
  run.device = "cpu";
  run.master_seed = 42;
  run.started = "2026-11-26T10:00:00.000Z";
  run.complete = true;
  run.faults = Json::array({"a-fault"});
  run.provenance = Json::parse(R"({
    "program": {"name": "p", "version": "1"},
    "settings": {"values": {"a.b": {"value": "3", "origin": "--set"}, "c": {"value": "4", "origin": "default"}}},
    "selection": {"suites": []},
    "environment": {"OMP_NUM_THREADS": "1"},
    "flags": {"set": {"NSA_X": "1"}, "effective": {}},
    "config": {"file": "tiny.yaml", "hash": "1", "resolved": {"nsa.w": "32"}},
    "torch": {"version": "2"}})");
  run.suites = {{.name = "s_sweep", .purpose = "", .requires_suites = {}, .cases = {c}}};
  return run;
}

Json sealed_bundle() {
  const Case c = failed({finding("A", Severity::block, {{"stage", "layers.0.o"}, {"row", 5}})});
  Json json = bundle_of(run_that_has(c), c, {}, Json::array());
  json["seal"] = "0123456789abcdef";
  return json;
}

TEST(Bundle, HoldsWhatRepeatsTheCaseAndNothingTwice) {
  const Json json = sealed_bundle();
  EXPECT_THAT(schema::violations(Json::parse(bundle_schema()), json), IsEmpty());
  EXPECT_EQ(json["settings"], Json::parse(R"({"a.b": {"value": "3", "origin": "--set"}})"));
  EXPECT_EQ(json["resolved"], Json::parse(R"({"file": "tiny.yaml", "values": {"nsa.w": "32"}})"));
  EXPECT_EQ(json["environment"], Json::parse(R"({"OMP_NUM_THREADS": "1", "NSA_X": "1"})"));
  EXPECT_EQ(json["provenance"],
            Json::parse(R"({"config": {"file": "tiny.yaml", "hash": "1"}, "torch": {"version": "2"}})"));
  const Bundle read = parse_bundle(dump(json), "b");
  EXPECT_EQ(read.case_id, "s_sweep/length[S=512]");
  EXPECT_EQ(read.seed, 42U);
  EXPECT_THAT(read.faults, ElementsAre("a-fault"));
  EXPECT_EQ(read.settings.at(0).value, "3");
  EXPECT_EQ(read.resolved.at("nsa.w"), "32");
  EXPECT_EQ(read.signature.code, "A");
  EXPECT_TRUE(
      same_failure(read.signature, signature_of(failed({finding("A", Severity::block, {{"stage", "layers.11.o"}})}))));
}

TEST(Bundle, ManyFindingsAndLongOnesAreBounded) {
  std::vector<Finding> findings(100, finding("A", Severity::block, {{"large", std::string(1 << 20, 'x')}}));
  const Case c = failed(findings);
  const Json json = bundle_of(run_that_has(c), c, {}, Json::array());
  EXPECT_EQ(json["findings"].size(), 32U);
  EXPECT_EQ(json["findings_left_out"], 68);
  EXPECT_LT(dump(json).size(), 64U << 10);
}

TEST(Signature, TheWorstFindingLeadsAndNumbersAreNoPartOfThePlace) {
  const Signature s = signature_of(failed(
      {finding("W", Severity::warn, {{"op", "first"}}),
       finding("A", Severity::block,
               {{"stage", "layers.10.attention.o"}, {"op", "attend[S=512]"}, {"row", 511}, {"other", "not a place"}}),
       finding("B", Severity::block, {})}));
  EXPECT_EQ(s.code, "A");
  EXPECT_EQ(s.place, Json({{"op", "attend[S=#]"}, {"stage", "layers.#.attention.o"}}));
  EXPECT_EQ(s.at, Json({{"row", 511}}));
  EXPECT_THAT(s.codes, ElementsAre("A", "B"));
  EXPECT_EQ(to_string(s), "fail, A (block), op attend[S=#], stage layers.#.attention.o, row 511");
}

TEST(Signature, AnotherStatusCodePlaceOrReasonIsAnotherFailure) {
  const Signature one = signature_of(failed({finding("A", Severity::block, {{"stage", "x"}, {"row", 1}})}));
  EXPECT_TRUE(same_failure(one, signature_of(failed({finding("A", Severity::block, {{"row", 2}, {"stage", "x"}})}))));
  EXPECT_FALSE(same_failure(one, signature_of(failed({finding("B", Severity::block, {{"stage", "x"}})}))));
  EXPECT_FALSE(same_failure(one, signature_of(failed({finding("A", Severity::block, {{"stage", "y"}})}))));
  EXPECT_FALSE(same_failure(one, signature_of(failed({finding("A", Severity::block, {})}))));
  EXPECT_FALSE(same_failure(signature_of(failed({finding("A", Severity::block, {})})), one));
  Case crashed = failed({finding("A", Severity::block, {{"stage", "x"}})});
  crashed.status = Status::crash;
  EXPECT_FALSE(same_failure(one, signature_of(crashed)));
  Case unexplained = failed({}), other = failed({});
  unexplained.reason_code = "unexplained_check";
  EXPECT_FALSE(same_failure(signature_of(unexplained), signature_of(other)));
  EXPECT_TRUE(same_failure(signature_of(unexplained), signature_of(unexplained)));
}

TEST(Bundle, APathStaysBelow) {
  for (const char* good : {"a", "a/b", "artifacts/x=1/inputs.pt", "..a"}) EXPECT_TRUE(stays_below(good)) << good;
  for (const char* bad : {"", "/a", "..", "../a", "a/..", "a/../b", "a//b", "./a", "a/"})
    EXPECT_FALSE(stays_below(bad)) << bad;
  EXPECT_FALSE(stays_below(std::string_view("a\0b", 3)));
}

TEST(Bundle, TheReportsNameItWhereItIsAndOnlyThere) {
  Case c = failed({finding("A", Severity::block, {{"stage", "x"}})});
  c.repro = "the command";
  reports::Run run = run_that_has(c);
  for (const std::string& text : {to_markdown(run), to_html(run), dump(to_json(run))})
    EXPECT_THAT(text, Not(HasSubstr("bundle")));
  run.bundles[c.id] = {"bundles/x", "p replay /r/bundles/x"};
  EXPECT_THAT(to_markdown(run), HasSubstr("p replay /r/bundles/x"));
  EXPECT_THAT(to_html(run), HasSubstr("p replay /r/bundles/x"));
  const Json json = to_json(run);
  EXPECT_EQ(json["suites"][0]["cases"][0]["bundle"], "bundles/x");
  EXPECT_EQ(json["suites"][0]["cases"][0]["replay"], "p replay /r/bundles/x");
}

// Every value in turn is left out, and made one of another type.
TEST(Bundle, ADamagedOneIsNeverRead) {
  const Json whole = sealed_bundle();
  EXPECT_NO_THROW((void)parse_bundle(dump(whole), "b"));
  const std::string text = dump(whole);
  for (std::size_t size = 0; size < text.size(); size += 7)
    EXPECT_THROW((void)parse_bundle(text.substr(0, size), "b"), JournalError) << size;
  int refused = 0;
  for (const auto& [key, value] : whole.items()) {
    if (key == "seal") continue;  // the harness's
    Json without = whole;
    without.erase(key);
    EXPECT_THROW((void)parse_bundle(dump(without), "b"), JournalError) << key;
    Json other = whole;
    other[key] = nullptr;
    EXPECT_THROW((void)parse_bundle(dump(other), "b"), JournalError) << key;
    ++refused;
  }
  EXPECT_EQ(refused, 17);
  Json major = whole;
  major["schema_version"] = "2.0.0";
  try {
    (void)parse_bundle(dump(major), "b");
    FAIL();
  } catch (const JournalError& error) {
    EXPECT_TRUE(error.incompatible);
    EXPECT_THAT(error.what(), HasSubstr("b: the bundle has schema version 2.0.0"));
  }
}

}  // namespace
}  // namespace reports
