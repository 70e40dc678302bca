// The checks of the initial values, one function each. They take a model, so that a test can hand in a damaged one.
#pragma once

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
// The same seed gives the same bits, another seed gives others.
void seeds(const Subject& subject, Context& context, const ModelOptions& options);

}  // namespace suites::init_checks
