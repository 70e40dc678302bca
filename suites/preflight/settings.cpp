#include "suites/preflight/settings.hpp"

namespace suites {

std::vector<harness::SettingSpec> preflight_settings() {
  using enum harness::SettingType;
  return {
      {.key = "preflight.expect",
       .type = text,
       .default_value = "",
       .meaning = "configuration file that the one in use must agree with; empty: none",
       .allowed = "a path to a YAML file that sets any subset of a configuration"},
      {.key = "preflight.expect_environment",
       .type = text_list,
       .default_value = "[]",
       .meaning = "variables and effective flags that must have these values",
       .allowed = "a list of NAME=value: variables in capitals (empty value: unset), or fields of the effective flags"},
      {.key = "preflight.expect_commit",
       .type = text,
       .default_value = "",
       .meaning = "commit that the program must contain, for instance a fix; empty: none",
       .allowed = "a commit that git knows in the program's checkout"},
      {.key = "preflight.train_folder",
       .type = text,
       .default_value = "",
       .meaning = "folder that the training run will write to: control files, space; empty: none",
       .allowed = "a path, which need not exist",
       .path_to = harness::PathTo::any},
      {.key = "preflight.host_memory_gib",
       .type = real,
       .default_value = "4",
       .meaning = "host memory that must be free, in GiB (looked at at the standard level, and at every level where it "
                  "is set)",
       .allowed = "0 to 65536",
       .minimum = 0,
       .maximum = 65536},
      {.key = "preflight.first_batch_s",
       .type = real,
       .default_value = "20",
       .meaning = "deadline for the first batch of training data, in seconds",
       .allowed = "0.01 to 600",
       .minimum = 0.01,
       .maximum = 600},
  };
}

}  // namespace suites
