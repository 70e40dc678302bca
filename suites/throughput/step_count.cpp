#include "suites/throughput/step_count.hpp"

#include <algorithm>

#include "nsa/ops.hpp"

namespace suites::throughput_cases {

namespace {

double element_bytes(nsa::Precision precision) {
  switch (precision) {
    case nsa::Precision::bf16:
      return 2;
    case nsa::Precision::fp32:
      return 4;
    case nsa::Precision::fp64:
      return 8;
  }
  return 8;
}

}  // namespace

double StepCount::total() const {
  double sum = 0;
  for (const auto& [part, bytes] : parts) sum += bytes;
  return sum;
}

reports::Json StepCount::to_json() const {
  reports::Json json = reports::Json::object();
  for (const auto& [part, bytes] : parts) json[part] = reports::number(bytes);
  return json;
}

StepCount count_step(const nsa::Config& config, const nsa::Route& route) {
  const nsa::ModelConfig& m = config.model;
  const nsa::TrainConfig& t = config.train;
  const auto real = [](std::int64_t value) { return static_cast<double>(value); };
  const double e = element_bytes(t.precision), wide = std::max(e, 4.0);
  const double tokens = real(t.batch_size * t.seq_len * t.accumulate_grad_batches);
  const double queries = real(m.n_heads * m.d_k), outputs = real(m.n_heads * m.d_v);
  const double keys = real(m.n_kv_groups * m.d_k), values = real(m.n_kv_groups * m.d_v), dim = real(m.dim);
  const double chosen = real(std::min(m.nsa.n_sel, nsa::selection_blocks(m.nsa, t.seq_len)) * m.nsa.l_sel);
  const double blocks = real(nsa::compressed_blocks(m.nsa, t.seq_len));
  const bool gathers = nsa::gathers(route[nsa::Op::attend_selected]);
  const auto by_kernels = [&](nsa::Op op) {
    return route[op].backend == nsa::Backend::cuda;
  };  // neither rows nor scores

  // Bytes of one token in one layer.
  const double projections = e * (queries + 3 * (keys + values) + dim);
  const double rope = wide * (queries + 3 * keys);
  const double selection = by_kernels(nsa::Op::attend_selected) ? real(m.n_kv_groups * m.nsa.n_sel) * 4  // the table
                           : gathers
                               ? chosen * (e * (keys + values) + real(m.n_kv_groups) * (8 + 1))  // rows, index, mask
                               : real(m.n_kv_groups * t.seq_len) * (1 + e);                      // mask, as added
  // Of the choice of blocks; no gradient.
  const double scores = by_kernels(nsa::Op::select) ? 0 : wide * real(m.n_heads) * blocks;
  const double branches = 3 * e * outputs + wide * 4 * outputs;
  const double mlp = e * (4 * dim + 4 * dim + dim), norms_and_residual = e * 4 * dim;

  const double layer_tokens = tokens * real(m.n_layers), both = 2;  // a tensor and its gradient
  const double weights = real(nsa::parameter_count(m));
  return {{{"projections", both * layer_tokens * projections},
           {"rope", both * layer_tokens * rope},
           {"chosen blocks", both * layer_tokens * selection},
           {"scores of blocks", layer_tokens * scores},
           {"branches and gates", both * layer_tokens * branches},
           {"mlp", both * layer_tokens * mlp},
           {"norms and residual", both * layer_tokens * norms_and_residual},
           {"embedding and head", both * tokens * (e * dim + (e + wide) * real(m.vocab))},
           {"gradients of weights", weights * e * real(t.accumulate_grad_batches)},
           {"update", weights * (wide > e ? wide : 0)}}};
}

}  // namespace suites::throughput_cases
