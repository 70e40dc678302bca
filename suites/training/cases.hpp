// The cases of the suite `training`, one file a family; suite.cpp plans them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "harness/context.hpp"
#include "suites/subject.hpp"
#include "suites/training/run.hpp"

namespace suites::training_cases {

// -- smoke
void real_text(const Subject& subject, harness::Context& context);      // training_run.cpp
void loss_floor(const Subject& subject, harness::Context& context);     // loss_floor.cpp
void guards(const Subject& subject, harness::Context& context);         // guards.cpp
void streams(const Subject& subject, harness::Context& context);        // streams.cpp
void trainer_parts(const Subject& subject, harness::Context& context);  // trainer_parts.cpp
void captured_step(const Subject& subject, harness::Context& context);  // captured_step.cpp; on a GPU
// written_down.cpp: what a run of nsa-train writes down is what a witness saw.
enum class WrittenData;
void written_down(const Subject& subject, harness::Context& context, WrittenData data);

// -- standard
// training_run.cpp: one length of run, one kind of data, one precision. What is limited to keep the time is said there.
struct RunKind {
  Data data = Data::text;
  nsa::Precision precision = nsa::Precision::fp32;
  std::int64_t steps = 10;
};
void training_run(const Subject& subject, harness::Context& context, const RunKind& kind);
// resume.cpp: a run that was cut off and goes on from its checkpoint file is the run that was not.
void resume(const Subject& subject, harness::Context& context, Data data, nsa::Precision precision);
// accumulation.cpp: n batches of one row are one batch of n rows.
void accumulation(const Subject& subject, harness::Context& context, nsa::Precision precision);
// variants.cpp: what the first steps do when one thing at a time is changed; tells causes apart when they fail.
void variants(const Subject& subject, harness::Context& context);
// anomaly_stop.cpp: a NaN at step k leaves the last good state, a HALT record that says so, and a run that goes on.
void anomaly_stop(const Subject& subject, harness::Context& context);

// Fresh uniform tokens [batch, length] for every call, on the CPU; torch's generator is not touched.
class RandomTokens {
 public:
  RandomTokens(std::int64_t vocab, std::uint64_t seed);
  at::Tensor next(std::int64_t batch, std::int64_t length);

 private:
  std::int64_t vocab_;
  at::Generator generator_;
};

// Row i of tokens [rows, length].
[[nodiscard]] std::vector<std::int64_t> row_of(const at::Tensor& rows, std::int64_t i);

// Mean and standard deviation of the negative log-likelihood of tokens[:, 1:] given tokens[:, :-1], in nats a token,
// computed here from the logits (fp32) without gradients.
struct TokenLoss {
  double mean = 0, deviation = 0;
  std::int64_t tokens = 0;
};
[[nodiscard]] TokenLoss evaluate(nsa::LanguageModelImpl& model, const at::Tensor& tokens);

}  // namespace suites::training_cases
