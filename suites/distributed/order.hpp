// What the ranks of a run are asked to do: a file that all of them read. No torch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "reports/json.hpp"

namespace suites::distributed_ranks {

struct Order {
  std::filesystem::path folder;                // of this order, and what the ranks write
  std::map<std::string, std::string> config;   // nsa::flatten of the configuration, train.* of this run
  std::string device = "cpu";                  // "cpu", or "cuda": rank r takes GPU r
  double timeout_s = 10;                       // of the meeting and of each collective
  bool check_always = false;                   // compare the signature of every collective of every step
  bool keep_first_step = false;                // gradients, weights and choices of the first step: a file of tensors
  std::filesystem::path resume_from, save_to;  // checkpoints; "": none
  std::int64_t stop_after = 0;                 // steps; 0: all of train.steps
  std::vector<std::int64_t> reduce_elements;   // all-reduces to be timed before the first step
  int threads = 1;                             // of torch, in each rank
  std::vector<std::string> planted;            // Subject::planted_names()
  std::filesystem::path run_folder;            // and what else a fault is told (harness::FaultSite)
  std::string run_id;

  [[nodiscard]] std::filesystem::path file() const { return folder / "order.json"; }
  [[nodiscard]] std::filesystem::path record_of(int rank) const;
  [[nodiscard]] std::filesystem::path tensors_of(int rank) const;
  [[nodiscard]] std::filesystem::path output_of(int rank) const;
};

// Makes the folder. Throws std::runtime_error.
void write_order(const Order& order);
[[nodiscard]] Order read_order(const std::filesystem::path& file);

}  // namespace suites::distributed_ranks
