// A model from a configuration, its weights by name from a file, and what it makes of a text.
#include <ATen/ATen.h>

#include <exception>
#include <iomanip>
#include <iostream>

#include "nsa/config.hpp"
#include "nsa/flags.hpp"
#include "nsa/model/make.hpp"
#include "nsa/parameters.hpp"

int main(int argc, char** argv) try {
  if (argc != 3) {
    std::cerr << "usage: example CONFIG.yaml CHECKPOINT.safetensors\n";
    return 2;
  }
  const nsa::Config config = nsa::load_config(argv[1]);
  nsa::LanguageModel model = nsa::make_model(config.model, nsa::resolve(nsa::read_environment()));
  nsa::load_parameters(model, nsa::load_tensors(argv[2], nsa::kCheckpointParameters));

  const at::Tensor tokens = (at::arange(2 * 129, at::kLong) * 7 % config.model.vocab).view({2, 129});
  const at::NoGradGuard no_grad;
  std::cout << "logits " << model->forward(tokens).sizes() << '\n'
            << "loss " << std::setprecision(17) << model->loss(tokens).item<double>() << '\n';
} catch (const std::exception& error) {
  std::cerr << "example: " << error.what() << '\n';
  return 1;
}
