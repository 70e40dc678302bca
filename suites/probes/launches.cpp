#include "suites/probes/launches.hpp"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "suites/probes/op_tap.hpp"

namespace suites::probes {

namespace {

// RecordFunction takes plain functions, so what they write to cannot travel with them.
std::mutex mutex;
OpCount* counting = nullptr;                     // of the count that lives; guarded
bool only_cuda = false;                          // guarded
thread_local std::vector<char> computed_inside;  // one entry for each operation that this thread is inside of

// An operation computes when it returns a tensor that is not merely another view of an argument.
bool schema_computes(const c10::FunctionSchema& schema) {
  return std::any_of(schema.returns().begin(), schema.returns().end(), [](const c10::Argument& result) {
    const bool tensor =
        result.type()->isSubtypeOf(*c10::TensorType::get()) || result.type()->isSubtypeOf(*c10::ListType::ofTensors());
    return tensor && (result.alias_info() == nullptr || result.alias_info()->isWrite());
  });
}

bool computes(const at::RecordFunction& op) {
  static std::unordered_map<std::string, bool> known;  // guarded by the caller's lock
  const auto name = op.operator_name();
  if (!name) return false;  // not one of the dispatcher's
  const std::string key = name->name + "." + name->overload_name;
  if (const auto found = known.find(key); found != known.end()) return found->second;
  static const std::set<std::string> kOnlyMemory = {"aten::empty",     "aten::empty_like",        "aten::empty_strided",
                                                    "aten::new_empty", "aten::new_empty_strided", "aten::resize_",
                                                    "aten::set_",      "aten::_unsafe_view"};
  const auto handle = c10::Dispatcher::singleton().findSchema(*name);
  const bool result = !kOnlyMemory.contains(name->name) && handle && schema_computes(handle->schema());
  return known[key] = result;
}

bool waits(const at::RecordFunction& op) {
  static const std::set<std::string> kReadByHost = {
      "aten::_local_scalar_dense", "aten::nonzero",    "aten::masked_select", "aten::_unique2",
      "aten::unique_consecutive",  "aten::unique_dim", "aten::equal"};
  const auto on_device = [&](const c10::IValue& value) {
    return value.isTensor() && value.toTensor().defined() && (!only_cuda || value.toTensor().is_cuda());
  };
  const c10::ArrayRef<const c10::IValue> inputs = op.inputs();
  if (kReadByHost.contains(op.name())) return !inputs.empty() && on_device(inputs[0]);
  if (std::string_view(op.name()) != "aten::copy_" || inputs.size() < 2 || !inputs[0].isTensor() ||
      !inputs[1].isTensor())
    return false;
  return inputs[0].toTensor().device().type() != inputs[1].toTensor().device().type();
}

std::unique_ptr<at::ObserverContext> enter_launches(const at::RecordFunction& op) {
  computed_inside.push_back(0);
  const std::lock_guard lock(mutex);
  if (counting != nullptr && waits(op)) {  // the inputs are there only when an operation begins
    ++counting->host_syncs;
    ++counting->syncs_by_op[op.name()];
  }
  return nullptr;
}

// What an operation made of others does, they have done.
void leave_launches(const at::RecordFunction& op, at::ObserverContext*) {
  if (computed_inside.empty()) return;  // began before the count
  bool computed = computed_inside.back() != 0;
  computed_inside.pop_back();
  if (!computed) {
    const std::lock_guard lock(mutex);
    computed = counting != nullptr && computes(op);
    if (computed) {
      ++counting->ops;
      ++counting->by_op[op.name()];
    }
  }
  if (computed && !computed_inside.empty()) computed_inside.back() = 1;
}

class Counting {
 public:
  Counting(OpCount& count, at::Device device) {
    {
      const std::lock_guard lock(mutex);
      if (counting != nullptr) throw std::logic_error("count_ops inside another count");
      counting = &count;
      only_cuda = device.is_cuda();
    }
    tap_.emplace(OpTap::Of::all_threads, enter_launches, leave_launches, TapSees{.inputs = true});
  }
  ~Counting() {
    tap_.reset();
    computed_inside.clear();
    const std::lock_guard lock(mutex);
    counting = nullptr;
  }
  Counting(const Counting&) = delete;
  Counting& operator=(const Counting&) = delete;

 private:
  std::optional<OpTap> tap_;
};

reports::Json listed(std::vector<std::pair<std::string, std::int64_t>> rows, std::size_t count) {
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  if (rows.size() > count) rows.resize(count);
  reports::Json json = reports::Json::array();
  for (const auto& [op, calls] : rows) json.push_back({{"op", op}, {"calls", calls}});
  return json;
}

}  // namespace

reports::Json OpCount::most_frequent(std::size_t count) const { return listed({by_op.begin(), by_op.end()}, count); }

OpCount count_ops(at::Device device, const std::function<void()>& code) {
  OpCount count;
  const Counting scope(count, device);
  code();
  return count;
}

Growth growth_per_row(const OpCount& shorter, const OpCount& longer, double added_rows) {
  Growth growth;
  growth.ops_per_row = static_cast<double>(longer.ops - shorter.ops) / added_rows;
  growth.syncs_per_row = static_cast<double>(longer.host_syncs - shorter.host_syncs) / added_rows;
  std::vector<std::pair<std::string, std::int64_t>> rows;
  for (const auto& [op, calls] : longer.by_op) {
    const auto before = shorter.by_op.find(op);
    const std::int64_t added = calls - (before == shorter.by_op.end() ? 0 : before->second);
    if (added > 0) rows.emplace_back(op, added);
  }
  growth.grown = listed(std::move(rows), 6);
  return growth;
}

}  // namespace suites::probes
