// parity: every backend computes what the fp64 reference computes, and what the description says must hold.
#include <fmt/format.h>

#include "harness/suite.hpp"
#include "suites/parity/cases.hpp"
#include "suites/probes/one_thread.hpp"
#include "suites/subject.hpp"

namespace suites {

namespace {

using harness::Case;
using harness::Context;
using nsa::Op;
using nsa::Phi;
using parity_cases::OpRun;

std::string dtype_name(at::ScalarType dtype) {
  return dtype == at::kDouble ? "fp64" : dtype == at::kFloat ? "fp32" : "bf16";
}

std::string op_name(const OpRun& run) {
  if (run.attention) return "attention";
  return std::string(nsa::to_string(run.op)) + (run.phi == Phi::mlp ? "_mlp" : "");
}

constexpr std::int64_t kLongestOnCpu = 1024;
// Cases of whole models in fp64: seconds on a GPU or with a small model, minutes with a large one on a CPU.
constexpr std::chrono::seconds kWholeModel{900};

probes::ThreadsFor threads_of_the_subject(const Context& context, const Subject& subject) {
  return {subject.config(context).model.dim, context.cuda()};
}

void whole_constants(Context& context, const Subject& subject) {
  const auto threads = threads_of_the_subject(context, subject);
  parity_cases::whole_constants(context, subject);
}

class Plan {
 public:
  explicit Plan(const Subject& subject) : subject_(subject) {}

  void op(const std::string& name, const OpRun& run, void (*body)(Context&, const Subject&, const OpRun&),
          harness::Level level = harness::Level::smoke) {
    Case c = make(name, level);
    c.params.set("backend", run.way);
    c.params.set("dtype", dtype_name(run.dtype));
    c.params.set("op", op_name(run));
    if (run.S > 0) c.params.set("S", std::to_string(run.S));
    c.needs_cuda = way_named(run.way).needs_cuda;
    c.run = [subject = subject_, run, body](Context& context) { body(context, subject, run); };
    cases.push_back(std::move(c));
  }
  void identity(const std::string& which) {
    Case c = make("identity");
    c.params.set("name", which);
    c.run = [subject = subject_, which](Context& context) { parity_cases::identity(context, subject, which); };
    cases.push_back(std::move(c));
  }
  void plain(const std::string& name, void (*body)(Context&, const Subject&),
             harness::Level level = harness::Level::smoke) {
    Case c = make(name, level);
    c.run = [subject = subject_, body](Context& context) { body(context, subject); };
    cases.push_back(std::move(c));
  }

  void attention(std::int64_t S, bool named) {
    Case c = make("attention");
    c.params.set("S", std::to_string(S));
    // The reference takes S^2 products in fp64; a length that a user names is looked at all the same.
    c.needs_cuda = S > kLongestOnCpu && !named;
    c.run = [subject = subject_, S](Context& context) {
      parity_cases::attention_at(context, subject, {.S = S, .precision = subject.config(context).train.precision});
    };
    cases.push_back(std::move(c));
  }
  // As `plain`, with the shape that is trained with as its parameter.
  void attention_in_training() {
    plain("attention", parity_cases::attention_in_training);
    cases.back().params.set("S", "train.seq_len");
  }

  void whole(const std::string& name, const parity_cases::WholeStep& step,
             void (*body)(Context&, const Subject&, const parity_cases::WholeStep&),
             harness::Level level = harness::Level::smoke) {
    Case c = make(name, level);
    c.params.set("model", step.model);
    c.params.set("precision", std::string(nsa::to_string(step.precision)));
    if (body == parity_cases::whole_step) c.params.set("S", step.tokens);
    c.timeout = kWholeModel;
    c.run = [subject = subject_, step, body](Context& context) {
      const auto threads = threads_of_the_subject(context, subject);
      body(context, subject, step);
    };
    cases.push_back(std::move(c));
  }

  // ---- standard level
  void pairwise(const OpRun& run) {
    Case c = make("pairwise", harness::Level::standard);
    c.params.set("dtype", dtype_name(run.dtype));
    c.params.set("op", op_name(run));
    c.run = [subject = subject_, run](Context& context) { parity_cases::pairwise(context, subject, run); };
    cases.push_back(std::move(c));
  }
  void model_pairwise(const std::string& model) {
    Case c = make("model_pairwise", harness::Level::standard);
    c.params.set("model", model);
    c.run = [subject = subject_, model](Context& context) { parity_cases::model_pairwise(context, subject, model); };
    cases.push_back(std::move(c));
  }
  void xpath(const std::string& model, nsa::Precision precision) {
    Case c = make("xpath", harness::Level::standard);
    c.params.set("model", model);
    c.params.set("precision", std::string(nsa::to_string(precision)));
    c.brought_by = {"parity.handover_steps"};
    c.run = [subject = subject_, model, precision](Context& context) {
      parity_cases::xpath(context, subject, model, precision);
    };
    cases.push_back(std::move(c));
  }
  void model_identity(const std::string& which) {
    // What no other case of smoke looks at: a forced branch in decoding, logits of the gates that exp cannot hold.
    const bool early = which == "branch_alone" || which == "gate_shift";
    Case c = make("model_identity", early ? harness::Level::smoke : harness::Level::standard);
    c.params.set("name", which);
    c.run = [subject = subject_, which](Context& context) { parity_cases::model_identity(context, subject, which); };
    cases.push_back(std::move(c));
  }
  // Sums of thousands of terms, as 16 bits hold them, also where the subject trains in fp32.
  void attention_in_16_bits() {
    constexpr std::int64_t kTokens = 2048;
    Case c = make("attention", harness::Level::standard);
    c.params.set("S", std::to_string(kTokens));
    c.params.set("precision", "bf16");
    c.run = [subject = subject_](Context& context) {
      parity_cases::attention_at(context, subject, {.S = kTokens, .precision = nsa::Precision::bf16});
    };
    cases.push_back(std::move(c));
  }
  void reads() {
    Case c = make("reads", harness::Level::standard);
    c.run = [subject = subject_](Context& context) { parity_cases::reads(context, subject); };
    cases.push_back(std::move(c));
  }

  std::vector<Case> cases;

 private:
  Subject subject_;
  static Case make(const std::string& name, harness::Level level = harness::Level::smoke) {
    Case c;
    c.name = name;
    c.level = level;
    return c;
  }
};

// Compression exists in two kinds.
std::vector<Phi> phis(Op op) { return op == Op::compress ? std::vector{Phi::avg, Phi::mlp} : std::vector{Phi::avg}; }

// Every way but the reference itself, in every dtype that it serves on this level (fp64 is for identities).
void plan_ops(Plan& plan, bool cuda) {
  for (const Way& way : ways()) {
    if (way.name == "reference") continue;
    // Where there are kernels, sdpa's other ways to select run only when somebody asks for them.
    const bool asked_for = way.name == "sdpa_packed" || way.name == "sdpa_masked";
    const auto level = cuda && asked_for ? harness::Level::standard : harness::Level::smoke;
    for (const Op op : way.ops) {
      for (const Phi phi : phis(op)) {
        for (const at::ScalarType dtype : way.dtypes) {
          if (dtype != at::kDouble) plan.op("op", {way.name, op, phi, dtype}, parity_cases::against_reference);
        }
        const at::ScalarType exact = way.needs_cuda ? at::kBFloat16 : at::kFloat;
        if (op != Op::combine) plan.op("causality", {way.name, op, phi, exact}, parity_cases::causality, level);
        const at::ScalarType packed = way.needs_cuda ? at::kBFloat16 : at::kDouble;
        if (op != Op::combine && way.packed) {
          plan.op("packed", {way.name, op, phi, packed}, parity_cases::packed, level);
        }
        if (op == Op::select && way.needs_cuda)
          plan.op("equal_scores", {way.name, op, phi, exact}, parity_cases::equal_scores);
        if (op != Op::select)
          plan.op("nan_visible", {way.name, op, phi, exact}, parity_cases::nan_stays_visible, level);
      }
    }
  }
}

constexpr std::int64_t kLongOfImplementation = 515;

// An implementation that is not ours: what it does not claim is skipped by its cases.
void plan_implementation(Plan& plan) {
  const auto each_dtype = [&](OpRun run) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      run.dtype = dtype;
      plan.op("op", run, parity_cases::against_reference);
      OpRun longer = run;  // than any block, window or tile of a small geometry
      longer.S = kLongOfImplementation;
      plan.op("op", longer, parity_cases::against_reference);
      plan.op("repeatable", run, parity_cases::repeatable);
      if (run.op != Op::combine) plan.op("causality", run, parity_cases::causality);
      if (run.op != Op::combine) plan.op("packed", run, parity_cases::packed);
      if (run.op != Op::select) plan.op("nan_visible", run, parity_cases::nan_stays_visible);
      if (run.op == Op::select) plan.op("equal_scores", run, parity_cases::equal_scores);
    }
  };
  for (const Op op : nsa::kAllOps) each_dtype({.way = kImplementation, .op = op});
  each_dtype({.way = kImplementation, .op = Op::attend, .attention = true});
}

// The whole model against the oracle's.
// What a GPU computes no other way than a CPU (fp64, constants of a configuration) is smoke's where there is none.
void plan_whole(Plan& plan, bool cuda) {
  using nsa::Precision;
  const auto also_on_cpu = cuda ? harness::Level::standard : harness::Level::smoke;
  for (const std::string model : {"subject", "small"}) {
    const auto second = model == "small" ? also_on_cpu : harness::Level::smoke;
    plan.whole("whole_step", {model, Precision::fp64}, parity_cases::whole_step, also_on_cpu);
    plan.whole("whole_step", {model, Precision::fp32}, parity_cases::whole_step);
    plan.whole("whole_step", {model, Precision::bf16, "train.seq_len"}, parity_cases::whole_step);
    plan.whole("whole_step", {model, Precision::fp64, "documents"}, parity_cases::whole_step, second);
    plan.whole("whole_decoding", {model, Precision::fp32}, parity_cases::whole_decoding, second);
  }
  for (const std::string S : {"1", "l-1", "l", "l+1", "2w+lsel", "train.seq_len", "window_chunks"})
    plan.whole("whole_step", {"subject", Precision::fp32, S}, parity_cases::whole_step);
  plan.whole("whole_step", {"subject", Precision::fp32, "query_chunks"}, parity_cases::whole_step,
             harness::Level::standard);
  // Our own kernels decode in 16 bits.
  plan.whole("whole_decoding", {"subject", Precision::bf16}, parity_cases::whole_decoding,
             cuda ? harness::Level::smoke : harness::Level::standard);
  // What every backend is compared with, in the precision that it is compared in.
  for (const std::string S : {"2w+lsel+3", "documents"})
    plan.whole("whole_reference", {"subject", Precision::fp64, S, /*by_reference=*/true}, parity_cases::whole_step,
               also_on_cpu);
  plan.plain("whole_constants", whole_constants, also_on_cpu);
  plan.cases.back().timeout = kWholeModel;
}

// The same questions deeper: every pair of backends, every way through the model, in every precision.
void plan_standard(Plan& plan) {
  for (const Op op : nsa::kAllOps) {
    for (const Phi phi : phis(op)) {
      for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) plan.pairwise({"", op, phi, dtype});
    }
  }
  for (const std::string model : {"small", "subject"}) {
    for (const auto precision : {nsa::Precision::fp64, nsa::Precision::fp32, nsa::Precision::bf16})
      plan.xpath(model, precision);
    plan.model_pairwise(model);
  }
  plan.plain("attention", parity_cases::attention_of_another_geometry, harness::Level::standard);
  plan.cases.back().params.set("geometry", "another");
  plan.attention_in_16_bits();
  plan.reads();
  for (const std::string& name : parity_cases::model_identity_names()) plan.model_identity(name);
}

std::vector<Case> plan_cases(const Subject& subject, const harness::Settings& settings) {
  Plan plan(subject);
  const bool cuda = settings.text("run.device") == "cuda";
  if (judges_implementation(settings)) {
    plan_implementation(plan);
    return std::move(plan.cases);
  }
  plan_ops(plan, cuda);
  const bool named = settings.values().at("parity.lengths").origin != "default";
  for (const std::int64_t S : settings.integers("parity.lengths")) plan.attention(S, named);
  plan.attention_in_training();
  plan.plain("attention_packed", parity_cases::attention_packed);
  plan.plain("attention_at_boundaries", parity_cases::attention_at_boundaries);
  plan.plain("rounded_once", parity_cases::rounded_once);
  plan.plain("equal_scores", [](Context& context, const Subject& own) {
    parity_cases::equal_scores(context, own, {"sdpa", Op::select, Phi::avg, at::kFloat});
  });
  for (const std::string& name : parity_cases::identity_names()) plan.identity(name);
  plan_whole(plan, cuda);
  plan.plain("model_causality", parity_cases::model_causality);
  plan.plain("model_packed", parity_cases::model_packed);
  plan.plain("model_batch_of_two", parity_cases::model_batch_of_two);
  plan.plain("model_watched", parity_cases::model_watched);
  plan_standard(plan);
  return std::move(plan.cases);
}

std::vector<harness::SettingSpec> settings() {
  return {{.key = "parity.lengths",
           .type = harness::SettingType::integer_list,
           .default_value = "[128, 512, 1024, 2048]",
           .meaning = "lengths at which attention is compared with fp64 as it trains, besides train.seq_len",
           .allowed = "positive integers",
           .minimum = 1,
           .maximum = 1 << 16},
          {.key = "parity.budget_factor",
           .type = harness::SettingType::real,
           .default_value = "4",
           .meaning = "allowed error, as a multiple of the error of the naive computation in the same dtype",
           .allowed = "1 or more",
           .minimum = 1,
           .maximum = 1000},
          {.key = "parity.handover_steps",
           .type = harness::SettingType::integer,
           .default_value = "96",
           .meaning = "decoding steps that are compared after a prefill of part of the text",
           .allowed = "1 or more",
           .minimum = 1,
           .maximum = 65536}};
}

}  // namespace

harness::Suite parity(const Subject& subject) {
  return {
      .name = "parity",
      .purpose = "every backend agrees with the fp64 reference within rounding, and the identities of the method hold",
      .requires_suites = {"preflight"},
      .cases = [subject](const harness::Settings& settings) { return plan_cases(subject, settings); },
      .settings = settings(),
      .sizes = {{"parity.lengths", 1, "S"}, {"parity.handover_steps"}},
      .runs_after = "autograd",
      .judges_implementation = true};
}

}  // namespace suites
