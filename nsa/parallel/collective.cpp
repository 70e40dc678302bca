// What a rank does in a collective: recorded, its signature compared, then given to the backend.
#include <fmt/format.h>

#include "nsa/parallel/inside.hpp"

namespace nsa::parallel {

namespace {

std::string signature_of(const std::string& name, const at::Tensor& tensor) {
  return fmt::format("sum '{}' of {} x {} on {}", name, tensor.numel(), c10::toString(tensor.scalar_type()),
                     c10::DeviceTypeName(tensor.device().type(), /*lower_case=*/true));
}

// The value that most ranks have; rank 0's where two are as frequent.
std::string usual_of(const std::vector<std::string>& all) {
  std::map<std::string, int> counts;
  for (const auto& one : all) ++counts[one];
  std::string usual = all.front();
  for (const auto& [value, count] : counts)
    if (count > counts[usual]) usual = value;
  return usual;
}

bool is_done(c10d::Work& work) {
  try {
    return work.isCompleted() && work.exception() == nullptr;
  } catch (const std::exception&) {  // a GPU that is lost ends nothing
    return false;
  }
}

}  // namespace

Group::Inside::Begun Group::Inside::begin_sum(at::Tensor& tensor, const std::string& name) {
  throw_if_troubled();
  if (options.seams.before) options.seams.before(name, tensor);
  if (options.phase) options.phase(name);
  const std::uint64_t sequence = ring.begin(name, tensor.numel(), c10::toString(tensor.scalar_type()), now_s());
  if (checking || options.check_collectives) compare_signature(sequence, signature_of(name, tensor));
  if (options.seams.inside) options.seams.inside(name);
  std::vector<at::Tensor> tensors = {tensor};
  c10::intrusive_ptr<c10d::Work> work;
  {
    const std::lock_guard<std::timed_mutex> lock(*giving);
    if (!trouble()) work = processes.group->allreduce(tensors);
  }
  if (!work) throw_if_troubled();
  ring.waits(sequence, true);
  const Future future = work->getFuture();
  if (tensor.is_cuda())
    ring.ends_when(sequence, [work] { return is_done(*work); });
  else
    future->addCallback([this, sequence](c10::ivalue::Future& done) {
      if (!done.hasError()) ring.end(sequence, now_s());
    });
  return {future, work};
}

void Group::Inside::await_gpu(c10d::Work& work) {
  constexpr std::chrono::microseconds kPause{20};
  constexpr std::chrono::seconds kLast{5};  // the watching thread is earlier, unless it has lost the store
  const auto until = Clock::now() + options.timeout + kLast;
  while (!work.isCompleted()) {
    throw_if_troubled();
    if (Clock::now() > until) fail(/*timed_out=*/true, "the GPU has not ended it");
    std::this_thread::sleep_for(kPause);
  }
  throw_if_troubled();  // what was broken off is complete too
  if (const std::exception_ptr error = work.exception()) std::rethrow_exception(error);
  ring.look(now_s());
}

void Group::Inside::recorded(const std::string& name, const std::function<void()>& collective) {
  throw_if_troubled();
  if (options.phase) options.phase(name);
  const std::uint64_t sequence = ring.begin(name, 0, "", now_s());
  ring.waits(sequence, true);
  collective();
  throw_if_troubled();  // a GPU's collective that was broken off leaves anything in its tensors, and throws nothing
  ring.end(sequence, now_s());
}

void Group::Inside::compare_signature(std::uint64_t sequence, const std::string& signature) {
  const std::string place = fmt::format("signature/{}", sequence);
  meeting.store->set(fmt::format("{}/{}", place, options.world.rank), signature);
  ring.waits(sequence, true);
  const auto all = await_all(place);
  ring.waits(sequence, false);
  if (sequence > 1)  // all are here, so all have read those of the one before
    meeting.store->deleteKey(fmt::format("signature/{}/{}", sequence - 1, options.world.rank));
  const std::string usual = usual_of(all);
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank] != usual)
      throw Disagreement(
          fmt::format("collective {}: rank {} calls {}, the others {}", sequence, rank, all[rank], usual),
          {static_cast<int>(rank)}, "collective");
}

std::vector<std::string> Group::Inside::await_all(const std::string& key) {
  std::vector<std::string> keys;
  keys.reserve(static_cast<std::size_t>(options.world.size));
  for (int rank = 0; rank < options.world.size; ++rank) keys.push_back(fmt::format("{}/{}", key, rank));
  const auto between = [this] { throw_if_troubled(); };
  if (!await_keys(*meeting.store, keys, options.timeout, between)) fail(/*timed_out=*/true, "");
  std::vector<std::string> all;
  all.reserve(keys.size());
  for (const auto& one : keys) all.push_back(meeting.store->get_to_str(one));
  return all;
}

}  // namespace nsa::parallel
