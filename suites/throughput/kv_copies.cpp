#include "suites/throughput/kv_copies.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <memory>

#include "suites/probes/op_tap.hpp"

namespace suites::throughput_cases {

namespace {

constexpr double kKey = 0.37109375, kEvenValue = 1.8125, kOddValue = -0.6484375;  // exact in bf16

// What ATen operations returned while a recording lives, held so that no memory is given out twice.
struct Recorded {
  std::string op;
  int depth = 0;  // 0: not inside another operation
  at::Tensor tensor;
};
thread_local std::vector<Recorded>* recording = nullptr;  // NOLINT: a callback has no other place that is per thread
thread_local int depth = 0;

std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction&) {
  ++depth;
  return nullptr;
}

void leave(const at::RecordFunction& op, at::ObserverContext*) {
  --depth;
  if (recording == nullptr) return;
  const auto take = [&](const at::Tensor& t) {  // no ATen call here: it would come back to this callback
    if (t.defined() && t.is_floating_point() && t.has_storage()) recording->push_back({op.name(), depth, t});
  };
  for (const c10::IValue& value : op.outputs()) {
    if (value.isTensor()) take(value.toTensor());
    if (value.isTensorList()) {
      for (const at::Tensor& t : value.toTensorVector()) take(t);
    }
  }
}

class Recording {
 public:
  Recording() : tap_(probes::OpTap::Of::this_thread, enter, leave, {.outputs = true}) {
    recording = &kept;
    depth = 0;
  }
  ~Recording() { recording = nullptr; }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  std::vector<Recorded> kept;

 private:
  probes::OpTap tap_;
};

// Nine in ten of the elements that are not padding are numbers of the pattern.
bool is_copy(const at::Tensor& t) {
  const double filled = static_cast<double>(t.ne(0).sum().item<std::int64_t>());
  const auto share = [&](const at::Tensor& same) {
    return static_cast<double>(same.sum().item<std::int64_t>()) / filled;
  };
  return filled > 0 && (share(t.eq(kKey)) > 0.9 || share(t.eq(kEvenValue).logical_or(t.eq(kOddValue))) > 0.9);
}

std::int64_t bytes_of(const at::Tensor& t) {
  std::int64_t elements = 1;
  for (std::int64_t d = 0; d < t.dim(); ++d) elements *= t.stride(d) == 0 ? 1 : t.size(d);
  return elements * static_cast<std::int64_t>(t.element_size());
}

}  // namespace

KvPattern kv_pattern(at::IntArrayRef k_shape, at::IntArrayRef v_shape, const at::TensorOptions& options) {
  const at::Tensor odd = at::arange(v_shape[1], options.dtype(at::kLong)).remainder(2).eq(1).view({1, -1, 1, 1});
  const auto scalar = [&](double value) { return at::full({1}, value, options); };
  return {at::full(k_shape, kKey, options),
          at::where(odd, scalar(kOddValue), scalar(kEvenValue)).expand(v_shape).contiguous()};
}

std::vector<KvCopy> kv_copies(const KvPattern& pattern, const std::function<void()>& call) {
  std::vector<Recorded> kept;
  {
    Recording recorder;
    call();
    kept = std::move(recorder.kept);
  }
  const at::NoGradGuard no_grad;
  struct Candidate {
    KvCopy copy;
    int depth;
  };
  std::map<const void*, Candidate> by_storage;
  for (const Recorded& r : kept) {
    if (r.tensor.numel() == 0 || r.tensor.is_alias_of(pattern.k) || r.tensor.is_alias_of(pattern.v)) continue;
    if (!is_copy(r.tensor)) continue;
    const auto [it, fresh] =
        by_storage.try_emplace(r.tensor.storage().unsafeGetStorageImpl(), Candidate{{r.op, 0, r.tensor}, r.depth});
    Candidate& candidate = it->second;
    candidate.copy.bytes = std::max(candidate.copy.bytes, bytes_of(r.tensor));
    if (r.depth < candidate.depth) {  // an operation's inner ones end before it
      candidate.copy.op = r.op;
      candidate.depth = r.depth;
    }
  }
  std::vector<KvCopy> copies;
  for (const auto& [storage, candidate] : by_storage) copies.push_back(candidate.copy);
  std::sort(copies.begin(), copies.end(), [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  return copies;
}

std::int64_t total_bytes(const std::vector<KvCopy>& copies) {
  std::int64_t bytes = 0;
  for (const KvCopy& copy : copies) bytes += copy.bytes;
  return bytes;
}

}  // namespace suites::throughput_cases
