// What example/ must print, by this tree's own code: library_reference CONFIG CHECKPOINT writes the checkpoint too.
// Not by the functions that the example uses: the model is made by hand.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/utils.h>

#include "nsa/dispatch.hpp"
#include "nsa/model/lm.hpp"
#include "nsa/train/checkpoint.hpp"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const auto config = nsa::load_config(argv[1]);
  const auto flags = nsa::resolve(nsa::read_environment());
  torch::manual_seed(20);
  nsa::Runtime runtime;
  runtime.flags = flags;
  runtime.ops = nsa::Dispatcher(flags).provider();
  nsa::LanguageModel model(config.model, runtime);

  nsa::train::TrainState state;
  for (const auto& parameter : model->named_parameters())
    state.tensors.emplace("model/" + parameter.key(), parameter.value().detach());
  state.facts = {{"step", 0}};
  nsa::train::write_checkpoint(argv[2], state);

  const auto tokens = (at::arange(2 * 129, at::kLong) * 7 % config.model.vocab).view({2, 129});
  const at::NoGradGuard no_grad;
  fmt::print("logits [2, 129, {}]\nloss {:.17g}\n", config.model.vocab, model->loss(tokens).item<double>());
}
