#include "nsa/parallel/group.hpp"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include "base/text.hpp"
#include "nsa/parallel/inside.hpp"
#include "nsa/parallel/patient_store.hpp"

namespace nsa::parallel {

namespace {

constexpr std::chrono::milliseconds kLeave{5'000};  // rank 0 serves the store for this long after it has left

std::string text_of(const std::exception& error) {
  const auto* torchs = dynamic_cast<const c10::Error*>(&error);
  return torchs != nullptr ? torchs->what_without_backtrace() : error.what();
}

// c10d, gloo and NCCL have no types of their own for what goes wrong between processes.
bool is_of_communication(const std::exception& error) {
  if (dynamic_cast<const c10::DistError*>(&error) != nullptr) return true;
  const std::string text = text_of(error);
  for (const char* word : {"gloo", "NCCL", "onnection", "imed out", "timeout", "Broken pipe", "c10d"})
    if (text.find(word) != std::string::npos) return true;
  return false;
}

bool is_of_time(const std::string& text) {
  return text.find("imed out") != std::string::npos || text.find("timeout") != std::string::npos;
}

}  // namespace

Group::Group(const GroupOptions& options) : inside_(std::make_unique<Inside>(options)) {}

std::shared_ptr<Group> Group::join(const GroupOptions& options) { return std::shared_ptr<Group>(new Group(options)); }

Group::~Group() {
  Inside& in = *inside_;
  try {
    if (in.trouble() || in.store_lost) return;
    const auto left = in.meeting.store->add("left", 1);
    const bool serves = !in.options.world.store_is_served && rank() == 0;
    if (left == size()) in.meeting.store->set("all_left", "1");
    if (serves) (void)await_keys(*in.meeting.store, {"all_left"}, kLeave);
  } catch (const std::exception&) {  // the store is gone: nobody is left to be told
  }
}

int Group::rank() const { return inside_->options.world.rank; }
int Group::size() const { return inside_->options.world.size; }
const GroupOptions& Group::options() const { return inside_->options; }
const char* Group::backend() const { return inside_->processes.name; }
double Group::now_s() const { return inside_->now_s(); }
std::vector<CollectiveRecord> Group::collectives() const { return inside_->ring.all(); }

void Group::sum(at::Tensor& tensor, std::string_view name) {
  try {
    const auto begun = inside_->begin_sum(tensor, std::string(name));
    begun.future->waitAndThrow();  // on a GPU its stream waits
    if (tensor.is_cuda()) inside_->await_gpu(*begun.work);
  } catch (const std::exception& error) {
    explain(error);
  }
}

std::vector<std::string> Group::gather(const std::string& key, const std::string& mine) {
  Inside& in = *inside_;
  try {
    if (const auto told = look_up(*in.meeting.store, kTroubleKey)) in.learn(trouble_of(*told));  // the newest
    in.throw_if_troubled();
    const std::uint64_t count = ++in.gatherings[key];
    const auto place = [&](std::uint64_t which) { return fmt::format("gather/{}/{}", key, which); };
    const std::string name = "gather " + key;
    if (in.options.phase) in.options.phase(name);
    const std::uint64_t sequence = in.ring.begin(name, 0, "", in.now_s());
    in.meeting.store->set(fmt::format("{}/{}", place(count), rank()), mine);
    in.ring.waits(sequence, true);
    auto all = in.await_all(place(count));
    in.ring.end(sequence, in.now_s());
    // All are here, so all have read what was gathered before.
    if (count > 1) in.meeting.store->deleteKey(fmt::format("{}/{}", place(count - 1), rank()));
    return all;
  } catch (const std::exception& error) {
    explain(error);
  }
}

void Group::stop_checking() { inside_->checking = false; }

void Group::tell_failure(const std::string& why) noexcept {
  inside_->declare({"failed", {rank()}, fmt::format("rank {} has ended: {}", rank(), why)});
}

void Group::check() { inside_->throw_if_troubled(); }

void Group::explain(const std::exception& error) {
  if (dynamic_cast<const Error*>(&error) != nullptr || !is_of_communication(error)) throw;
  const std::string text = text_of(error);
  const bool silent = dynamic_cast<const StoreSilent*>(&error) != nullptr;
  inside_->fail(silent || is_of_time(text), base::first_line(text));
}

}  // namespace nsa::parallel
