// How the processes of a run ended, and what one failure of all that is: the ranks that only suffered from another's
// are told from the one that failed. Pure: from records, exit statuses and times alone.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "suites/distributed/agreement.hpp"

namespace suites::distributed_ranks {

struct Ended {
  RankRecord record;
  bool by_signal = false;
  int value = 0;             // exit status or signal of the process
  bool ended_by_us = false;  // the starter ended it, because another had failed or time was up
  double seconds = 0;        // from the start of the run

  [[nodiscard]] bool well() const { return record.done && !record.error && !by_signal && value == 0; }
  [[nodiscard]] std::string how() const;  // "SIGKILL (Killed)", "exit code 3"
};

// The findings of a run that did not end well, the failure first; none where all ranks ended well. `needed_bytes`: of
// shared memory, which NCCL's ranks of one machine need; 0: none is.
[[nodiscard]] Disagreements judge_ends(const std::vector<Ended>& ends, double needed_bytes = 0);

// The code of a fact of the handshake that ranks disagree about: "weights" -> kRankWeights.
[[nodiscard]] std::string_view code_of_fact(std::string_view fact);

}  // namespace suites::distributed_ranks
