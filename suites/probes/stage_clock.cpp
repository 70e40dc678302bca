#include "suites/probes/stage_clock.hpp"

#include <ATen/cuda/CUDAEvent.h>

#include <array>
#include <chrono>
#include <mutex>
#include <optional>
#include <utility>

namespace suites::probes {

namespace {

struct Mark {
  std::string stage;
  bool backward = false;
  std::chrono::steady_clock::time_point time;
  std::unique_ptr<at::cuda::CUDAEvent> event;  // on a GPU
};

double seconds_between(Mark& a, Mark& b) {
  if (a.event) return 1e-3 * static_cast<double>(a.event->elapsed_time(*b.event));
  return std::chrono::duration<double>(b.time - a.time).count();
}

}  // namespace

std::string stage_name(std::string_view observed) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 13> kNames = {{
      {"attention.gates", "q_and_gates"},
      {"attention.q", "rope_of_q"},
      {"attention.cmp.k", "compress"},
      {"attention.cmp.v", "compress"},
      {"attention.cmp.o", "attend_compressed"},
      {"attention.blocks", "select"},
      {"attention.sel.o", "attend_selected"},
      {"attention.win.o", "attend_window"},
      {"attention.o", "combine"},
      {"attention", "output_projection"},
      {"mlp", "mlp"},
      {"", "residual"},
      {"logits", "head"},
  }};
  constexpr std::string_view kLayers = "layers.";
  if (observed.starts_with(kLayers)) {
    const std::size_t dot = observed.find('.', kLayers.size());
    observed = dot == std::string_view::npos ? std::string_view() : observed.substr(dot + 1);
  }
  for (const auto& [name, stage] : kNames) {
    if (name == observed) return std::string(stage);
  }
  return std::string(observed);
}

struct StageClock::State {
  at::Device device;
  std::mutex mutex;  // hooks come from autograd's threads
  std::vector<Mark> marks;
  bool running = false, backward = false;

  explicit State(at::Device of) : device(of) {}

  void mark(std::string stage, bool in_backward) {
    const std::lock_guard lock(mutex);
    if (!running || in_backward != backward) return;  // a hook of an earlier pass, or the model recomputes
    Mark mark{std::move(stage), in_backward, std::chrono::steady_clock::now(), nullptr};
    if (device.is_cuda()) {
      mark.event = std::make_unique<at::cuda::CUDAEvent>(cudaEventDefault);
      mark.event->record();
    }
    marks.push_back(std::move(mark));
  }
};

StageClock::StageClock(at::Device device) : state_(std::make_shared<State>(device)) {}
StageClock::~StageClock() { state_->running = false; }

void StageClock::begin() {
  state_->marks.clear();
  state_->running = true;
  state_->backward = false;
  state_->mark("begin", false);
}

void StageClock::observe(std::string_view name, const at::Tensor& value) {
  std::string stage = stage_name(name);
  if (at::GradMode::is_enabled() && value.requires_grad()) {
    value.register_hook([state = state_, stage](const at::Tensor&) { state->mark(stage, true); });
  }
  state_->mark(std::move(stage), false);
}

void StageClock::begin_backward() {
  state_->mark("end of forward", false);
  state_->backward = true;
  state_->mark("loss", true);
}

PassTimes StageClock::end() {
  State& state = *state_;
  state.mark("end", state.backward);
  state.running = false;
  if (state.device.is_cuda() && !state.marks.empty()) state.marks.back().event->synchronize();

  PassTimes times;
  const auto stage = [&](const std::string& name) -> StageTime& {
    for (StageTime& row : times.stages) {
      if (row.stage == name) return row;
    }
    return times.stages.emplace_back(StageTime{name, 0, 0});
  };
  for (std::size_t i = 0; i + 1 < state.marks.size(); ++i) {
    Mark &from = state.marks[i], &to = state.marks[i + 1];
    const double seconds = seconds_between(from, to);
    if (from.backward) {
      stage(from.stage).backward_s += seconds;
      times.backward_s += seconds;
    } else if (!to.backward && to.stage != "end of forward" && to.stage != "end") {
      stage(to.stage).forward_s += seconds;
      times.forward_s += seconds;
    }
  }
  state.marks.clear();
  return times;
}

}  // namespace suites::probes
