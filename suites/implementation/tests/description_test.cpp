#include "suites/implementation/description.hpp"

#include "suites/implementation/tests/support.hpp"

namespace suites::implementation::tests {
namespace {

using testing::HasSubstr;

Json answer() {
  return Json::parse(R"({"description": {
      "name": "fla naive_nsa", "version": "0.6.0", "computes": ["attend_window", "select", "combine"],
      "device": ["cpu"], "dtypes": ["fp32", "bf16"], "layouts": ["batched"], "gradients": false, "window": "w+1",
      "forced": {"first": 1, "last": 2}, "ties": "any", "importance": "paper", "shared_kv": false, "lse": "2",
      "limits": {"d_k": [16, 32]}},
    "python": "3.11.2", "torch": "2.11.0+cpu", "executable": "/usr/bin/python3", "cuda": false, "file": "/a.py",
    "mistakes": []})");
}

Description description(const std::function<void(Json&)>& change = [](Json&) {}) {
  Json json = answer();
  change(json);
  return description_from(json);
}

Wanted window() { return {nsa::Op::attend_window, {1, 64, 4, 2, 16, 16, {}}, at::kFloat, at::kCPU, false, false}; }

TEST(Description, IsRead) {
  const Description d = description();
  EXPECT_EQ(d.name, "fla naive_nsa");
  EXPECT_EQ(d.version, "0.6.0");
  EXPECT_EQ(d.window, "w+1");
  EXPECT_EQ(d.forced->first, 1);
  EXPECT_EQ(d.forced->last, 2);
  EXPECT_EQ(d.ties, "any");
  EXPECT_EQ(d.importance, "paper");
  EXPECT_EQ(d.lse, LseBase::two);
  EXPECT_TRUE(d.repeatable);
  EXPECT_FALSE(d.gradients);
  EXPECT_EQ(d.limits.of.at("d_k").allowed, (std::vector<std::int64_t>{16, 32}));
  EXPECT_EQ(d.torch, "2.11.0+cpu");
  EXPECT_EQ(d.file, "/a.py");
  EXPECT_FALSE(d.cuda);
}

TEST(Description, WhatMattersToNothingMayBeNull) {
  const Description d = description([](Json& json) {
    for (const char* key : {"window", "forced", "ties", "importance", "lse"}) json["description"][key] = nullptr;
    json["description"].erase("limits");
    json["description"]["repeatable"] = false;
  });
  EXPECT_EQ(d.window, "");
  EXPECT_FALSE(d.forced);
  EXPECT_EQ(d.lse, LseBase::none);
  EXPECT_FALSE(d.repeatable);
}

TEST(Description, MistakesAreToldAllAtOnce) {
  const auto error = error_of([] {
    (void)description([](Json& json) {
      json["mistakes"] = Json::parse(R"([
          {"key": "window", "value": "'v'", "allowed": "\"w\" or \"w+1\"", "where": "/a.py:3"},
          {"key": "ties", "value": "3", "allowed": "\"any\"", "where": "/a.py:3"}])");
      json["description"] = "spoiled";
    });
  });
  EXPECT_EQ(error.kind, "description");
  EXPECT_EQ(error.message, "/a.py:3: window = 'v'; allowed: \"w\" or \"w+1\"\n/a.py:3: ties = 3; allowed: \"any\"");
}

TEST(Description, ThatIsNoneIsRefused) {
  for (const char* key : {"name", "computes", "device", "dtypes", "layouts", "gradients", "shared_kv"}) {
    EXPECT_EQ(error_of([&] { (void)description([&](Json& j) { j["description"].erase(key); }); }).kind, "protocol")
        << key;
    EXPECT_EQ(error_of([&] { (void)description([&](Json& j) { j["description"][key] = 3; }); }).kind, "protocol")
        << key;
  }
  EXPECT_EQ(error_of([] { (void)description([](Json& j) { j["description"]["lse"] = "10"; }); }).message,
            "description: lse is \"10\"; allowed: \"e\", \"2\" or null");
}

TEST(Description, ClaimsWhatItComputes) {
  EXPECT_TRUE(description().claims(nsa::Op::select));
  EXPECT_FALSE(description().claims(nsa::Op::compress));
  EXPECT_FALSE(description().claims(nsa::Op::attend));
  for (const char* function : {"attend", "attention"})
    EXPECT_TRUE(description([&](Json& j) { j["description"]["computes"] = {function}; }).claims(nsa::Op::attend));
}

TEST(Refusal, IsEmptyForWhatIsClaimed) { EXPECT_EQ(refusal(description(), window()), ""); }

TEST(Refusal, SaysEachReason) {
  const auto why = [](auto change) {
    Wanted call = window();
    change(call);
    return refusal(description(), call);
  };
  EXPECT_EQ(why([](Wanted& c) { c.op = nsa::Op::attend_compressed; }),
            "fla naive_nsa does not compute attend_compressed; it computes attend_window, select, combine");
  EXPECT_EQ(why([](Wanted& c) { c.device = at::kCUDA; }), "fla naive_nsa: the call is on cuda; it computes on cpu");
  EXPECT_EQ(why([](Wanted& c) { c.dtype = at::kDouble; }), "fla naive_nsa: dtype fp64; it takes fp32, bf16");
  EXPECT_EQ(why([](Wanted& c) { c.packed = true; }), "fla naive_nsa: a packed batch; it takes batched");
  EXPECT_EQ(why([](Wanted& c) { c.gradients = true; }), "fla naive_nsa: gradients are needed, and it has none");
  EXPECT_EQ(why([](Wanted& c) { c.sizes.Dk = 48; }), "fla naive_nsa: d_k is 48; allowed: 16 or 32");
  EXPECT_EQ(why([](Wanted& c) {
              c.packed = true;
              c.sizes.Dk = 48;
            }),
            "fla naive_nsa: a packed batch; it takes batched; d_k is 48; allowed: 16 or 32");
}

TEST(Refusal, CombineSeesNoDocuments) {
  Wanted call = window();
  call.op = nsa::Op::combine;
  call.packed = true;
  EXPECT_EQ(refusal(description(), call), "");
}

TEST(Refusal, NobodyNeedsGradientsOfAChoice) {
  Wanted call = window();
  call.op = nsa::Op::select;
  call.gradients = true;
  EXPECT_EQ(refusal(description(), call), "");
}

TEST(Refusal, AGpuMustBeSeenToo) {
  const auto on_cuda = [](bool sees) {
    return description([&](Json& json) {
      json["description"]["device"] = {"cpu", "cuda"};
      json["cuda"] = sees;
    });
  };
  Wanted call = window();
  call.device = at::kCUDA;
  EXPECT_EQ(refusal(on_cuda(true), call), "");
  EXPECT_EQ(refusal(on_cuda(false), call), "fla naive_nsa: its torch sees no GPU");
}

TEST(Differences, AreKeysWithBothValues) {
  const Json before = {{"name", "a"}, {"gone", 1}, {"same", {1, 2}}},
             now = {{"same", {1, 2}}, {"new", true}, {"name", "b"}};
  const Json found = differences(before, now);
  EXPECT_EQ(found, Json({{"name", {{"was", "a"}, {"is", "b"}}},
                         {"gone", {{"was", 1}, {"is", nullptr}}},
                         {"new", {{"was", nullptr}, {"is", true}}}}));
  EXPECT_EQ(words_of(found), R"(name = "b", it was "a"; gone = null, it was 1; new = true, it was null)");
  EXPECT_TRUE(differences(before, {{"same", {1, 2}}, {"gone", 1}, {"name", "a"}}).empty());  // in another order
}

TEST(WantedCall, IsThatOfATable) {
  nsa::Call call{.B = 1, .S = 9, .Hq = 4, .G = 2, .Dk = 16, .Dv = 8, .geometry = {.l = 4, .d = 2, .l_sel = 8}};
  call.precision = nsa::Precision::bf16;
  call.cuda = call.packed = call.training = true;
  const Wanted w = wanted(nsa::Op::select, call);
  EXPECT_EQ(w.op, nsa::Op::select);
  EXPECT_EQ(w.sizes.S, 9);
  EXPECT_EQ(w.sizes.Dv, 8);
  EXPECT_EQ(w.sizes.geometry.l_sel, 8);
  EXPECT_EQ(w.dtype, at::kBFloat16);
  EXPECT_EQ(w.device, at::kCUDA);
  EXPECT_TRUE(w.packed && w.gradients);
}

}  // namespace
}  // namespace suites::implementation::tests
