// One rank of the tests of nsa/parallel: joins the group that its environment describes and plays the role that it is
// given, `rank_main ROLE [TIMEOUT_MS]`. Prints one line a fact, "error TYPE RANKS: WHAT" for an error of the group, and
// ends with 0, with 1 after such an error, with 3 for any other.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>

#include "base/environment.hpp"
#include "base/fnv1a.hpp"
#include "nsa/parallel/gradient_buckets.hpp"
#include "nsa/parallel/gradient_sums.hpp"
#include "nsa/parallel/group.hpp"
#include "nsa/parallel/handshake.hpp"

namespace {

using namespace nsa::parallel;

[[noreturn]] void sleep_for_ever() {
  for (;;) ::pause();
}

// A small model of three layers, the same on all ranks.
struct Layers {
  NamedTensors parameters;
  Layers() {
    at::manual_seed(7);
    for (int i = 0; i < 3; ++i)
      parameters.emplace_back(fmt::format("layer.{}", i), at::randn({33, 33}).mul_(0.2).set_requires_grad(true));
  }
  [[nodiscard]] at::Tensor loss(const at::Tensor& rows, bool skips_one = false) const {
    at::Tensor x = rows;
    for (std::size_t i = 0; i < parameters.size(); ++i)
      if (!(skips_one && i == 1)) x = at::tanh(at::matmul(x, parameters[i].second));
    return x.pow(2).sum();
  }
};

void print_gradients(const Layers& layers) {
  for (const auto& [name, parameter] : layers.parameters)
    fmt::print("gradient {} {:.9g} {:x}\n", name, parameter.grad().norm().item<double>(),
               bit_sums({{name, parameter.grad()}}).front());
}

// Twelve rows, shared by the ranks; the gradient is that of all twelve whatever their number.
void gradients(const std::shared_ptr<Group>& group, const std::string& fault) {
  const Layers layers;
  at::manual_seed(11);
  const at::Tensor all = at::randn({12, 33});
  GradientSums sums(layers.parameters, group, 5000);
  fmt::print("buckets {}\n", sums.buckets());
  const int rank = group->rank(), size = group->size();
  const bool none = fault == "none" && rank == 1;
  const at::Tensor mine = none ? at::Tensor()
                          : fault == "none"
                              ? all.narrow(0, rank == 0 ? 0 : 12 / size * (rank - 1), 12 / size)
                              : all.narrow(0, rank * 12 / size, (rank + 1) * 12 / size - rank * 12 / size);
  for (int step = 0; step < 3; ++step) {
    for (const auto& [name, parameter] : layers.parameters) const_cast<at::Tensor&>(parameter).mutable_grad().reset();
    if (fault == "accumulates" && mine.size(0) > 1) {
      layers.loss(mine.narrow(0, 0, 1)).backward();
      sums.begin();
      sums.backward(layers.loss(mine.narrow(0, 1, mine.size(0) - 1)));
    } else {
      sums.begin();
      if (none)
        sums.backward_of_nothing();
      else
        sums.backward(layers.loss(mine, fault == "skips" && rank == 1 && step == 2));
    }
  }
  print_gradients(layers);
  fmt::print("overlap {}\n", sums.overlap().reducing_s > 0);
}

// Layers beside each other instead of one after the other, so that autograd makes their gradients in the opposite order
// of that in which they are added.
at::Tensor loss_of_terms(const Layers& layers, const at::Tensor& rows, bool reversed, int skipped) {
  at::Tensor loss = at::zeros({});
  const int count = static_cast<int>(layers.parameters.size());
  for (int k = 0; k < count; ++k) {
    const int i = reversed ? count - 1 - k : k;
    if (i != skipped)
      loss = loss + at::tanh(at::matmul(rows, layers.parameters[static_cast<std::size_t>(i)].second)).pow(2).sum();
  }
  return loss;
}

// The same twelve rows by GradientBuckets: a bucket for each layer. Rank 1 comes to its gradients in another order.
void buckets(const std::shared_ptr<Group>& group, const std::string& fault) {
  const Layers layers;
  at::manual_seed(11);
  const at::Tensor all = at::randn({12, 33});
  const int rank = group->rank(), size = group->size();
  const at::Tensor mine = all.narrow(0, rank * 12 / size, 12 / size);
  const std::int64_t bytes = fault == "buckets of other sizes" && rank == 1 ? 1 << 20 : 5000;
  std::vector<std::string> came, summed;
  for (const auto& [name, parameter] : layers.parameters)
    parameter.register_hook([&came, name = name](const at::Tensor&) { came.push_back(name); });
  GradientBuckets sums(layers.parameters, rank, {.bytes = bytes, .last_bytes = bytes},
                       [&](GradientBuckets::Part& part) {
                         summed.push_back(fmt::format("{} after {}", part.name, came.size()));
                         group->sum(part.gathered(), part.name);
                       });
  for (int step = 0; step < 3; ++step) {
    for (const auto& [name, parameter] : layers.parameters) parameter.mutable_grad().reset();
    const bool accumulates = fault == "buckets accumulate";
    if (accumulates) loss_of_terms(layers, mine.narrow(0, 0, 1), false, -1).backward();
    came.clear();
    summed.clear();
    const at::Tensor rest = accumulates ? mine.narrow(0, 1, mine.size(0) - 1) : mine;
    const bool skips = fault == "buckets skip" && rank == 1 && step == 2;
    const at::Tensor loss = loss_of_terms(layers, rest, rank == 1, skips ? 1 : -1);
    sums.backward(loss);
    sums.finish();
  }
  fmt::print("came {}\nsummed {}\n", fmt::join(came, ","), fmt::join(summed, ","));
  print_gradients(layers);
}

// What GraphStep does on a GPU whose replay never ends.
void await_a_replay(Group& group) {
  group.replay_given(group.begin_replay("captured step", 1000, "Float"), [] { return false; });
  while (!group.troubled()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  group.check();
}

void play(const std::string& role, GroupOptions options) {
  const int rank = options.world.rank;
  if (role == "late" && rank == 1) sleep_for_ever();
  if (role == "zero comes last" && rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1'500));
  if ((role == "inside" || role == "slow answer") && rank == 1)
    options.seams.inside = [](const std::string& name) {
      if (name == "third") sleep_for_ever();
    };
  if (role == "shape" && rank == 1)
    options.seams.before = [](const std::string& name, at::Tensor& tensor) {
      if (name == "third") tensor = at::ones({tensor.numel() + 1});
    };
  if (role == "dtype" && rank == 1)
    options.seams.before = [](const std::string& name, at::Tensor& tensor) {
      if (name == "third") tensor = at::ones({tensor.numel()}, at::kDouble);
    };
  if (role == "slow answer") {
    options.seams.break_off = [] { fmt::print("broken off {}\n", wall_clock_s()); };
    options.doing = [rank] {
      if (rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(1'500));
      fmt::print("answers {}\n", wall_clock_s());
      return "answering";
    };
  }
  // A GPU that waits for a rank which is lost, and lets its thread go when it is told, or does not.
  static std::atomic<bool> let_go{false};
  if (role.starts_with("gpu") && rank == 0) {
    options.seams.inside = [](const std::string& name) {
      while (name == "third" && !let_go) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    };
    options.seams.break_off = [role] {
      if (role == "gpu never lets go") sleep_for_ever();
      fmt::print("broken off\n");
      let_go = true;
    };
  }
  const auto group = Group::join(options);
  fmt::print("joined {} of {} by {}\n", group->rank(), group->size(), group->backend());
  std::fflush(stdout);
  if (role == "gradients" || role == "none" || role == "skips" || role == "accumulates") return gradients(group, role);
  if (role.starts_with("buckets")) return buckets(group, role);
  if (role == "unrecorded") return group->sum_unrecorded({at::ones({2})}, {at::zeros({2})});
  if (role == "facts") {
    Facts facts = {{"build", "a"}, {"seed", rank == 1 ? "8" : "7"}};
    return agree(*group, "handshake", facts);
  }
  if (role == "clock") {
    static const int me = rank;
    return agree_on_time(*group, kMostClockSkew_s, [] { return wall_clock_s() + (me == 1 ? 90 : 0); });
  }
  if (role == "bit") {
    Layers layers;
    const at::NoGradGuard no_grad;
    if (rank == 1) layers.parameters[2].second.view(at::kInt)[0][0].bitwise_xor_(1);
    return agree_on_bits(*group, "weights", layers.parameters);
  }
  for (const char* name : {"first", "second", "third", "fourth"}) {
    if (std::string(name) == "third" && rank == 0 && role == "server stops") ::raise(SIGSTOP);
    if (std::string(name) == "third" && rank == 1) {
      if (role == "dies" || role.starts_with("gpu")) ::raise(SIGKILL);
      if (role == "stopped") ::raise(SIGSTOP);
      if (role == "outside" || role == "replay") sleep_for_ever();
      if (role == "fails") {
        group->tell_failure("its disk is full");
        std::exit(3);
      }
      if (role == "other") (void)group->gather("something", "else");
    }
    if (std::string(name) == "third" && role == "replay") return await_a_replay(*group);
    at::Tensor value = at::full({1000}, static_cast<double>(rank + 1), at::kFloat);
    group->sum(value, name);
    fmt::print("sum {} {}\n", name, value[0].item<double>());
    if (!group->options().check_collectives) group->stop_checking();
  }
  for (const auto& record : group->collectives()) fmt::print("record {}\n", describe(record));
  fmt::print("gathered {}\n", fmt::join(group->gather("names", fmt::format("rank {}", rank)), ","));
  fmt::print("all {}, none {}\n", all_of(*group, "first", true), all_of(*group, "second", rank != 1));
  fmt::print("gathered {}\n", fmt::join(group->gather("names", fmt::format("again {}", rank)), ","));
}

const char* type_of(const Error& error) {
  if (dynamic_cast<const Timeout*>(&error) != nullptr) return "Timeout";
  if (dynamic_cast<const PeerDied*>(&error) != nullptr) return "PeerDied";
  if (dynamic_cast<const Disagreement*>(&error) != nullptr) return "Disagreement";
  if (dynamic_cast<const RankAbsent*>(&error) != nullptr) return "RankAbsent";
  if (dynamic_cast<const RankTwice*>(&error) != nullptr) return "RankTwice";
  if (dynamic_cast<const PortTaken*>(&error) != nullptr) return "PortTaken";
  if (dynamic_cast<const Unreachable*>(&error) != nullptr) return "Unreachable";
  return "Error";
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  GroupOptions options;
  const std::string role = argc > 1 ? argv[1] : "";
  options.timeout = std::chrono::milliseconds(argc > 2 ? std::stoi(argv[2]) : 20'000);
  options.check_collectives = role != "unchecked" && !role.starts_with("gpu");
  options.doing = [role] { return "role " + role; };
  options.keep = [](const std::string& text) { fmt::print(stderr, "{}\n", text); };
  try {
    options.world = world_of(base::environment());
    play(role, options);
    return 0;
  } catch (const Error& error) {
    fmt::print("error {} {}: {}\n", type_of(error), fmt::join(error.ranks, ","), error.what());
    return 1;
  } catch (const std::exception& error) {
    fmt::print("other {}\n", error.what());
    return 3;
  }
}
