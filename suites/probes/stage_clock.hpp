// Where the time of a training step goes, stage by stage, forward and backward: a mark at every observed stage of the
// model (Runtime::observe) and at the arrival of that stage's gradient (a tensor hook). On a GPU a mark is a CUDA event
// in the stream, read after the pass, so that nothing is synchronised meanwhile; on a CPU it is the clock.
//
// A forward interval ends at a stage's mark and belongs to that stage: it holds all that the model did since the mark
// before (the stage's own projections too). A backward interval begins when a stage's gradient is complete and belongs
// to that stage: autograd then runs backward through what made it.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace suites::probes {

// "layers.3.attention.sel.o" -> "attend_selected": the stage's name without its layer, in the words of the ops table. A
// name that is not known stays as it is, without its layer.
[[nodiscard]] std::string stage_name(std::string_view observed);

struct StageTime {
  std::string stage;
  double forward_s = 0, backward_s = 0;  // of all layers together
};
struct PassTimes {
  std::vector<StageTime> stages;  // in the order of the forward pass
  double forward_s = 0, backward_s = 0;

  [[nodiscard]] double total() const { return forward_s + backward_s; }
};

// One pass at a time: begin(); the forward pass with observe() installed; begin_backward(); the backward pass; end().
class StageClock {
 public:
  explicit StageClock(at::Device device);
  ~StageClock();
  StageClock(const StageClock&) = delete;
  StageClock& operator=(const StageClock&) = delete;

  void begin();
  void observe(std::string_view name, const at::Tensor& value);
  void begin_backward();
  [[nodiscard]] PassTimes end();  // waits for the device; the clock can begin again

  struct State;

 private:
  std::shared_ptr<State> state_;  // hooks may outlive the clock
};

}  // namespace suites::probes
