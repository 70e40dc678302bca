// Faults of one rank among several: what happens to runs on many processes and machines. Each strikes at a moment of a
// rank's life (rank_moment.hpp), most of them on the last rank alone; a run of one process is never struck.
#include <ATen/ATen.h>
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <limits>
#include <stdexcept>
#include <thread>

#include "nsa/model/lm.hpp"
#include "nsa/parallel/group.hpp"
#include "nsa/parallel/world.hpp"
#include "nsa/train/batch.hpp"
#include "nsa/train/trainer.hpp"
#include "suites/codes.hpp"
#include "suites/faults/mutants.hpp"

namespace suites {

namespace rank_fault {

using At = RankMoment::At;
using Deed = void (*)(RankMoment&);

constexpr std::int64_t kStep = 1;  // that most of them strike in: the first has gone well

bool is_last(const RankMoment& moment) { return moment.rank == moment.size - 1; }

void for_ever() { std::this_thread::sleep_for(std::chrono::hours(24)); }

// Somebody listens there. The socket is left open: it ends with the process.
int taken_port() {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t size = sizeof(address);
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(listener, 1) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    throw std::runtime_error("planted: no port can be taken");
  return ntohs(address.sin_port);
}

void never_arrive(RankMoment& m) {
  if (m.at == At::launched && is_last(m)) for_ever();
}
void die(RankMoment& m) {
  if (m.at == At::stepping && m.step == kStep && is_last(m)) (void)raise(SIGKILL);
}
void hang_outside(RankMoment& m) {
  if (m.at == At::stepping && m.step == kStep && is_last(m)) for_ever();
}
void hang_inside(RankMoment& m) {
  if (m.at == At::inside && m.step == kStep && is_last(m)) for_ever();
}
// In the first step, whose signatures are compared.
void send_another_shape(RankMoment& m) {
  if (m.at == At::collective && m.step == 0 && is_last(m))
    *m.tensor = at::cat({m.tensor->flatten(), at::ones({1}, m.tensor->options())});
}
void send_another_dtype(RankMoment& m) {
  if (m.at == At::collective && m.step == 0 && is_last(m))
    *m.tensor = m.tensor->to(m.tensor->scalar_type() == at::kDouble ? at::kFloat : at::kDouble);
}
// After the ranks have compared their parameters, so that all seem to have the same ones.
void skip_a_parameter(RankMoment& m) {
  if (m.at == At::stepping && m.step == kStep && is_last(m)) m.model->head->weight.set_requires_grad(false);
}
void flip_a_bit(const at::Tensor& weight) {
  const at::NoGradGuard no_grad;
  const at::Tensor value = weight.detach().view(-1).narrow(0, 0, 1);
  // The lowest bit of the mantissa: the next number.
  value.copy_(at::nextafter(value, at::full_like(value, 10)));
}
void other_weights(RankMoment& m) {
  if (m.at == At::made && is_last(m)) flip_a_bit(m.model->head->weight);
}
void drift(RankMoment& m) {
  if (m.at == At::stepped && m.step == kStep && is_last(m)) flip_a_bit(m.model->head->weight);
}
void other_order(RankMoment& m) {
  if (m.at == At::made && is_last(m)) (void)(*m.stream)->next();
}
void other_order_later(RankMoment& m) {
  if (m.at == At::stepping && m.step == kStep && is_last(m)) (void)(*m.stream)->next();
}
// Its rows are those of the rank before it; it says that it stands where the others do.
class RolledRows : public nsa::train::BatchStream {
 public:
  RolledRows(std::shared_ptr<nsa::train::BatchStream> source, int size) : source_(std::move(source)), size_(size) {}
  nsa::train::Batch next() override {
    nsa::train::Batch batch = source_->next();
    if (batch.tokens.defined()) batch.tokens = at::roll(batch.tokens, batch.tokens.size(0) / size_, 0);
    return batch;
  }
  [[nodiscard]] nlohmann::json position() const override { return source_->position(); }
  void seek(const nlohmann::json& position) override { source_->seek(position); }

 private:
  std::shared_ptr<nsa::train::BatchStream> source_;
  int size_;
};
void rows_twice(RankMoment& m) {
  if (m.at == At::made && is_last(m)) *m.stream = std::make_shared<RolledRows>(*m.stream, m.size);
}
void lose_a_batch(RankMoment& m) {
  if (m.at == At::agreed) (void)(*m.stream)->next();
}
void other_seed(RankMoment& m) {
  if (m.at == At::launched && is_last(m)) m.config->seed += 1;
}
void other_build(RankMoment& m) {
  if (m.at == At::launched && is_last(m)) m.facts->build = "00000000deadc0de";
}
void other_flags(RankMoment& m) {
  if (m.at == At::launched && is_last(m)) setenv("NSA_ROPE_SCALE", "2", 1);
}
// The hook is there from the beginning, so that whoever looks at gradients as they arrive sees what it makes of them.
void nan_on_one(RankMoment& m) {
  static bool strikes = false;
  if (m.at == At::made && is_last(m))
    m.model->head->weight.register_hook([](const at::Tensor& gradient) {
      return strikes ? gradient * std::numeric_limits<double>::quiet_NaN() : gradient;
    });
  if (m.at == At::stepping) strikes = m.step == kStep;
}
void times_world_size(RankMoment& m) {
  if (m.at != At::made) return;
  for (const at::Tensor& parameter : m.model->parameters())
    parameter.register_hook([size = m.size](const at::Tensor& gradient) { return gradient * size; });
}
// What each rank's own share of the gradients has as its norm; it is reset when a step begins.
struct OwnNorm {
  double square = 0, told = 0;
};
OwnNorm& own_norm() {
  static OwnNorm norm;
  return norm;
}
// The norm is taken before the reduction, and gradients are clipped by it.
void norm_of_own(RankMoment& m) {
  OwnNorm& own = own_norm();
  if (m.at == At::made)
    for (const at::Tensor& parameter : m.model->parameters())
      parameter.register_hook([&own](const at::Tensor& gradient) {
        own.square += gradient.to(at::kDouble).square().sum().item<double>();
        return gradient;
      });
  if (m.at == At::stepping) own.square = 0;
  if (m.at == At::reduced) {
    double square = 0;
    for (const at::Tensor& parameter : m.model->parameters())
      square += parameter.grad().to(at::kDouble).square().sum().item<double>();
    own.told = std::sqrt(own.square);
    const at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : m.model->parameters())
      parameter.mutable_grad().mul_(std::sqrt(square) / own.told);
  }
  if (m.at == At::stepped) m.report->grad_norm = own.told;
}
void skewed_clock(RankMoment& m) {
  if (m.at == At::launched && is_last(m)) m.facts->clock_offset_s = 3600;
}
void unreachable_store(RankMoment& m) {
  if (m.at != At::launched || !is_last(m)) return;
  m.world->address = "127.0.0.1";
  m.world->port = 1;  // nobody listens there
}
void port_in_use(RankMoment& m) {
  if (m.at != At::launched) return;
  m.world->store_is_served = false;
  m.world->port = m.rank == 0 ? taken_port() : 1;
}
void full_shared_memory(RankMoment& m) {
  if (m.at == At::launched && is_last(m)) m.facts->shared_memory_bytes = 4096;
}

struct Row {
  const char* name;
  const char* what;
  std::vector<std::string_view> codes;
  Deed deed;
};
std::vector<Row> rows() {
  return {
      {"rank-never-arrives", "the last rank never looks for the others", {codes::kRankAbsent}, never_arrive},
      {"rank-dies", "the last rank is killed in its second step", {codes::kRankDied}, die},
      {"rank-hangs-outside", "the last rank hangs between two steps", {codes::kRankHangsOutside}, hang_outside},
      {"rank-hangs-inside",
       "the last rank hangs in a collective that it has begun",
       {codes::kRankHangsInside},
       hang_inside},
      {"rank-other-shape", "the last rank sends one element more", {codes::kCollectiveDiffers}, send_another_shape},
      {"rank-other-dtype", "the last rank sends another dtype", {codes::kCollectiveDiffers}, send_another_dtype},
      {"rank-skips-parameter",
       "the last rank freezes the head after the first step",
       {codes::kRankSkipsParameter},
       skip_a_parameter},
      {"rank-other-weights",
       "one bit of the last rank's head differs from the beginning",
       {codes::kRankWeights},
       other_weights},
      {"rank-drifts", "one bit of the last rank's head changes after its second step", {codes::kRanksDrift}, drift},
      {"rank-other-order", "the last rank is one batch ahead from the beginning", {codes::kRankData}, other_order},
      {"rank-other-order-later",
       "the last rank loses a batch after the first step",
       {codes::kRankData},
       other_order_later},
      {"rank-rows-twice", "the last rank reads the rows of the one before it", {codes::kRankRows}, rows_twice},
      {"rank-loses-a-batch", "all ranks pass over a batch before their first step", {codes::kRankData}, lose_a_batch},
      {"rank-other-seed", "the last rank has another seed", {codes::kRankSeed}, other_seed},
      {"rank-other-build", "the last rank says that it is another build", {codes::kRankBuild}, other_build},
      {"rank-other-flags", "an NSA_* variable is set on the last rank alone", {codes::kRankSettings}, other_flags},
      {"rank-nan",
       "the last rank's gradient of the head is NaN in its second step",
       {codes::kRankNotFinite},
       nan_on_one},
      {"rank-times-world-size",
       "the loss is multiplied by the number of ranks before its gradients are taken",
       {codes::kRankGradients},
       times_world_size},
      {"rank-norm-of-own",
       "each rank takes the norm of its own gradients and clips by it",
       {codes::kRankNorm},
       norm_of_own},
      {"rank-clock-skew", "the last rank's clock is an hour ahead", {codes::kRankClock}, skewed_clock},
      {"rank-store-unreachable",
       "the last rank looks for the store where none is",
       {codes::kStoreUnreachable},
       unreachable_store},
      {"rank-port-in-use", "somebody listens on the store's port already", {codes::kPortTaken}, port_in_use},
      {"rank-shared-memory-full",
       "/dev/shm of the last rank's machine is full",
       {codes::kSharedMemory},
       full_shared_memory},
  };
}

}  // namespace rank_fault

std::vector<Planted> rank_mutants(const std::shared_ptr<Seams>& seams) {
  std::vector<Planted> all;
  for (const rank_fault::Row& row : rank_fault::rows()) {
    const auto plant = [seams, deed = row.deed](const harness::FaultSite&) {
      seams->ranks.push_back([deed](RankMoment& moment) {
        if (moment.size > 1) deed(moment);
      });
    };
    all.push_back(
        {{row.name, row.what, {row.codes.begin(), row.codes.end()}, plant}, "ranks", "distributed/two_ranks"});
  }
  return all;
}

}  // namespace suites
