// nsa-train with a fault planted through its seams, for tests: "FAULT@STEP" stands before the other arguments.
//   nan-gradient   one gradient is NaN          nan-loss   a logit is NaN
//   hang           backward never returns       slow       backward takes 30 times as long
//   spin           backward computes for ever   crash      backward dies by SIGSEGV
//   nan-window     the window's output has a NaN (STEP counts its calls)
//   weights        a bit of a weight is another one after the step
//   unsupported    backward throws Unsupported
// With FAULT_RANK in the environment on that rank alone. Among several ranks the first backward pass is the rehearsal
// of nsa::parallel::GradientSums.
#include <ATen/ops/full_like.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <thread>

#include "nsa/train/run/program.hpp"

namespace {

using Clock = std::chrono::steady_clock;

void strike(const std::string& fault, const at::Tensor& gradient, Clock::duration usual) {
  if (fault == "nan-gradient") gradient.fill_(std::nan(""));
  while (fault == "hang") ::pause();
  if (fault == "slow") std::this_thread::sleep_for(std::max<Clock::duration>(30 * usual, std::chrono::seconds(2)));
  if (fault == "crash") (void)::raise(SIGSEGV);
  if (fault == "unsupported") throw nsa::Unsupported("this rank alone cannot");
  for (volatile std::int64_t turns = 0; fault == "spin";) turns = turns + 1;
}

void plant(nsa::LanguageModel& model, const std::string& fault, std::int64_t step) {
  const auto passes = std::make_shared<std::int64_t>(0);  // one count for all copies of a function
  if (fault == "nan-loss") {
    model->runtime->observe = [=](std::string_view name, const at::Tensor& value) {
      if (name == "logits" && value.requires_grad() && ++*passes == step) value.detach().view(-1)[0] = std::nan("");
    };
    return;
  }
  auto parameters = model->named_parameters();
  const auto first = Clock::now();
  parameters["layers.0.norm_mlp.weight"].register_hook([=](const at::Tensor& gradient) {
    const at::Tensor copy = gradient.clone();
    if (++*passes == step) strike(fault, copy, (Clock::now() - first) / step);
    return copy;
  });
}

nsa::OpsChange nan_in_window(std::int64_t at) {
  return [=, calls = std::make_shared<std::int64_t>(0)](nsa::Ops table, const nsa::Call&) {
    table.replace(&nsa::Ops::attend_window, [=, inner = table.attend_window](const nsa::AttendWindowArgs& args) {
      nsa::Attended result = inner(args);
      if (++*calls != at) return result;
      result.o = result.o.clone();  // autograd may have kept it
      result.o.detach()[0][3][1][2] = std::nan("");
      return result;
    });
    return table;
  };
}

void flip_a_bit_after(nsa::train::Seams& seams, std::int64_t step) {
  const auto weight = std::make_shared<at::Tensor>();
  seams.model = [weight](nsa::LanguageModel& model) {
    *weight = model->named_parameters()["layers.0.norm_mlp.weight"].detach();
  };
  seams.after_step = [weight, step](const nsa::train::Trainer& trainer) {
    if (trainer.steps_made() == step) weight->view(at::kInt)[0].bitwise_xor_(1);
  };
}

}  // namespace

int main(int argc, char** argv) {
  const std::string word = argc > 1 ? argv[1] : "";
  const auto at = word.find('@');
  if (at == std::string::npos) {
    fmt::print(stderr, "usage: {} FAULT@STEP ARGUMENTS...\n", argv[0]);
    return 99;
  }
  nsa::train::Seams seams;
  const std::string fault = word.substr(0, at);
  const std::int64_t step = std::stoll(word.substr(at + 1));
  const char *wanted = std::getenv("FAULT_RANK"), *rank = std::getenv("RANK");
  if (wanted != nullptr && (rank == nullptr || std::string(wanted) != rank)) {
    if (fault == "weights") seams.after_step = [](const nsa::train::Trainer&) {};  // on all: it decides who goes ahead
    return nsa::train::run_program(argc - 1, argv + 1, seams);
  }
  if (fault == "weights")
    flip_a_bit_after(seams, step);
  else if (fault == "nan-window")
    seams.ops = nan_in_window(step);
  else
    seams.model = [&](nsa::LanguageModel& model) { plant(model, fault, step); };
  return nsa::train::run_program(argc - 1, argv + 1, seams);
}
