// The checks of the initial values, one function each. They take a model, so that a test can hand in a damaged one.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "harness/context.hpp"
#include "suites/subject.hpp"

namespace suites::init_checks {

using harness::Context;
using harness::Json;

// Names, shapes and number of the parameters against the model's description; dtype and device of each parameter and
// buffer against what was asked for.
void parameter_set(Context& context, const ModelOptions& options, nsa::LanguageModelImpl& model);
// Every parameter against its law, alone and together with its like of all layers; a table for the reader.
void laws(Context& context, const ModelOptions& options, nsa::LanguageModelImpl& model);
// No two rows, of the same or of two parameters, hold the same random bits.
void streams(Context& context, const ModelOptions& options, nsa::LanguageModelImpl& model);
// The gates of every layer differ from token to token.
void gates(Context& context, const ModelOptions& options, nsa::LanguageModelImpl& model);
// The same seed gives the same bits, by a new model and, on the CPU, by reset_parameters(); another seed gives others.
void seeds(const Subject& subject, Context& context, const ModelOptions& options);
// Weights that are loaded by name arrive in every parameter, rounded to its dtype once. `load`: nsa::load_parameters; a
// test puts another one in its place.
using LoadParameters = std::function<void(const nsa::LanguageModel&, const std::map<std::string, at::Tensor>&)>;
void loaded_parameters(Context& context, const nsa::LanguageModel& model, std::uint64_t seed,
                       const LoadParameters& load);

// -- standard level

// No random stream was used twice, also not at another scale or offset.
void shared_streams(Context& context, const ModelOptions& options, nsa::LanguageModelImpl& model);
// Every activation of the first forward pass has the size that its own input and the laws give.
void activations(Context& context, const ModelOptions& options, nsa::LanguageModelImpl& model);
// So have the gradients at the loss; further down they neither vanish nor explode from layer to layer.
void gradient_scale(Context& context, const ModelOptions& options, nsa::LanguageModelImpl& model);
// The gates of every layer are undecided, and those of every group vary over tokens.
// Skips a case about the gates where a flag replaces them by constants.
void skip_replaced_gates(Context& context, const ModelOptions& options);
void gate_entropy(Context& context, const ModelOptions& options, nsa::LanguageModelImpl& model);
// The loss on random tokens is ln V + 1/6.
void initial_loss(Context& context, const ModelOptions& options, nsa::LanguageModelImpl& model);
// Two processes, with other numbers of threads, make the same bits from the same seed. `executable` understands
// parameters_verb() (processes.hpp). Seams play no part there: it is the product as it is.
void processes(Context& context, const ModelOptions& options, const std::filesystem::path& executable);

}  // namespace suites::init_checks
