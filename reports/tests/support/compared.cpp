#include "reports/tests/support/compared.hpp"

#include "reports/causes.hpp"
#include "reports/tests/support/sample.hpp"

namespace reports::sample {

Json provenance() {
  return Json::parse(R"({
    "program": {"name": "nsa-validate", "version": "0.1.0"},
    "source": {"folder": "/src", "git_sha": "0123abcd", "dirty": false},
    "build": {"build_id": "b1", "source_hash": "b1", "compiler": "g++ 12.2.0", "type": "Release"},
    "host": {"hostname": "node", "kernel": "6.18", "cpu": "A CPU", "cores": 16, "memory_bytes": 1024, "container": "none"},
    "environment": {"OMP_NUM_THREADS": "2"},
    "settings": {"files": [{"path": "ci.yaml", "hash": "f1"}],
                 "values": {"run.seed": {"value": "42", "origin": "default"},
                            "s_sweep.lengths": {"value": "[1, 2]", "origin": "ci.yaml:3"}}},
    "flags": {"set": {"NSA_USE_FA2": "1"}, "effective": {"fa2_all": {"value": "true", "origin": "NSA_USE_FA2"}}},
    "config": {"file": "m.yaml", "hash": "c1", "resolved": {"model.dim": "64"}},
    "selection": {"suites": ["smoke"], "level": "smoke", "cases": [], "exclude": ["a*"], "partial": false,
                  "guards_left_out": [], "fail_fast": false},
    "device": {"cuda_usable": true, "why_not": ""},
    "torch": {"version": "2.11.0", "threads": 2},
    "cuda": {"runtime": "13.0", "driver_supports": "13.0", "driver": "580.1"},
    "gpus": [{"index": 0, "name": "NVIDIA H200", "sm": "9.0", "ecc": true}],
    "what a provider adds one day": {"and": [{"deep": [1, 2]}]}
  })");
}

Compared::Compared(std::size_t runs) {
  for (std::size_t i = 0; i < runs; ++i) {
    runs_.push_back({"out/" + std::to_string(i + 1), run_of({Status::pass, Status::pass})});
    runs_.back().run.id = "r" + std::to_string(i + 1);
    runs_.back().run.provenance = provenance();
  }
}

Comparison Compared::operator()() {
  for (NamedRun& named : runs_) find_causes(named.run, {});
  return compare(runs_);
}

std::vector<std::string> names(const std::vector<Difference>& rows) {
  std::vector<std::string> all;
  for (const Difference& row : rows) all.push_back(row.name);
  return all;
}

Json interval(double low, double high, int n) { return {{"low", low}, {"high", high}, {"n", n}}; }

}  // namespace reports::sample
