// What was seen of the machine and what follows from it: judged once, told twice, by preflight as checks and findings
// of a run and by `doctor` in lines for people. Looking and judging are apart: each part of this folder has a plain
// struct for what was seen (which a test fills with a broken machine) and a function that judges it. No torch, no CUDA.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "harness/context.hpp"

namespace suites::machine {

using harness::Json;

struct Judgement {
  std::string name;  // "run_folder.space"
  bool holds = false;
  std::string what_failed;  // the finding's message when it does not hold, with numbers
  std::string_view code;    // raised then, with the severity of the table
  Json evidence = Json::object();
};

struct Inspection {
  std::string subject;         // "run_folder"; what it saw is told under this name
  std::string summary;         // one line of what was seen, for people
  Json seen = Json::object();  // the same for the report; sizes in bytes, units in the names
  std::vector<Judgement> judgements;
  bool cannot_tell = false;  // what should have been looked at could not be: never as good as sound

  // Everything that was judged holds.
  [[nodiscard]] bool sound() const;
};

// As a fact, and one check a judgement.
void tell(harness::Context& context, const Inspection& inspection);

// "1.5 GiB", "12 MiB"; the exact number belongs beside it where it is evidence.
[[nodiscard]] std::string in_words(double bytes);

}  // namespace suites::machine
