// nsa::attention for who wants o alone, as nsa.attention does: in two allocations, and with one result to hand to
// Python instead of ten. It goes straight to our kernels where nobody listens in between: plain tensors on one kind of
// device, no mode, no transform, no autocast. Everyone else (torch.compile, autocast, sdpa ...) meets nsa::attention
// and its autograd.
#include <ATen/ATen.h>
#include <ATen/FuncTorchTLS.h>
#include <ATen/core/dispatch/DispatchKeyExtractor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "nsa/attention_args.hpp"
#include "nsa/cuda/combine.hpp"
#include "nsa/cuda/compress.hpp"
#include "nsa/cuda/rows.hpp"
#include "nsa/cuda/stream.hpp"
#include "nsa/cuda/together.hpp"
#include "python/arguments.hpp"
#include "python/call.hpp"
#include "python/dispatcher.hpp"
#include "python/operators.hpp"
#include "python/room.hpp"

namespace nsa::python {

namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// Beyond, the parts lie by themselves: one piece of memory for all is harder to find, and the host's time is nothing.
constexpr std::int64_t kMostRoomBytes = std::int64_t{256} << 20;

// As AttendNode; what lies in the room is kept by the room.
struct AttentionNode : torch::autograd::Node {
  enum Given : std::size_t { kQ, kSelectedKeys, kSelectedValues, kWindowKeys, kWindowValues, kGates, kGiven };
  std::array<SavedVariable, kGiven> given;
  SavedVariable room, cu_seqlens;
  RoomSizes sizes;
  Geometry g;
  std::string backend;

  [[nodiscard]] std::string name() const override { return "NsaAttentionBackward"; }

  void release_variables() override {
    const std::lock_guard lock(mutex_);
    for (auto& x : given) x.reset_data();
    room.reset_data();
    cu_seqlens.reset_data();
  }

  variable_list apply(variable_list&& gradients) override {
    const std::lock_guard lock(mutex_);
    std::array<bool, cuda::kAllInputs> wanted{};
    for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] = task_should_compute_output(i);
    variable_list placed(wanted.size());
    if (!gradients[0].defined() || std::none_of(wanted.begin(), wanted.end(), [](bool w) { return w; })) return placed;
    std::array<Tensor, kGiven> x;
    for (std::size_t i = 0; i < kGiven; ++i) x[i] = given[i].unpack();
    const Room kept = room_in(room.unpack(), sizes);
    const auto& [cmp, sel, win] = kept.branches;
    const Tensor bounds = cu_seqlens.unpack();
    const auto computed =
        operator_of<&attention_backward>("nsa::attention_backward")
            .call(gradients[0], x[kQ], kept.cmp.k, kept.cmp.v, x[kSelectedKeys], x[kSelectedValues], x[kWindowKeys],
                  x[kWindowValues], x[kGates], kept.blocks, cmp.o, sel.o, win.o, cmp.stats, sel.stats, win.stats,
                  bounds.defined() ? MaybeTensor(bounds) : std::nullopt, g.l, g.d, g.l_sel, g.n_sel, g.w, wanted,
                  backend);
    std::size_t next = 0;
    for (std::size_t i = 0; i < wanted.size(); ++i)
      if (wanted[i]) placed[i] = computed[next++];
    return placed;
  }
};

template <typename... Tensors>
bool nobody_listens(const Tensors&... inputs) {
  using c10::DispatchKey;
  constexpr c10::DispatchKeySet kPlain({DispatchKey::CPU, DispatchKey::CUDA, DispatchKey::AutogradCPU,
                                        DispatchKey::AutogradCUDA, DispatchKey::ADInplaceOrView,
                                        DispatchKey::BackendSelect});
  const auto local = c10::impl::tls_local_dispatch_key_set();
  const auto keys = (c10::detail::multi_dispatch_key_set(inputs...) | local.included_) - local.excluded_;
  return kPlain.has_all(keys) && !(torch::autograd::isFwGradDefined(inputs) || ...);
}

RoomSizes sizes_of(const AttentionArgs& x) {
  const std::int64_t S = x.q.size(1);
  return {.B = x.q.size(0),
          .S = S,
          .Hq = x.q.size(2),
          .G = x.k.size(2),
          .Dk = x.k.size(3),
          .Dv = x.v.size(3),
          .N = x.cu_seqlens ? room_for_blocks(x.geometry, S) : compressed_blocks(x.geometry, S),
          .n_sel = x.geometry.n_sel,
          .type = x.q.scalar_type()};
}

Tensor forward_in(const Room& room, const AttentionArgs& x) {
  using cuda::aligned;
  const at::AutoDispatchBelowADInplaceOrView below;
  const Alone state;
  const cuda::OnDeviceOf device(x.q);
  const auto problems = cuda::problems_of(x.q, x.geometry, x.cu_seqlens, graph_calls());
  const std::int64_t S = x.k.size(1), N = compressed_blocks(x.geometry, x.cu_seqlens, S);
  Compressed cmp = room.cmp;
  if (cmp.k.size(1) != N) cmp = {cmp.k.narrow(1, 0, N), cmp.v.narrow(1, 0, N)};
  cuda::AllInputs given{aligned(x.q),
                        cmp.k,
                        cmp.v,
                        aligned(x.k_sel),
                        aligned(x.v_sel),
                        aligned(x.k_win),
                        aligned(x.v_win),
                        cuda::gates_for_kernels(x.gates, x.q.scalar_type())};
  const Tensor k = aligned(x.k), v = aligned(x.v);
  cuda::AllAsked asked{.into = room.branches, .blocks_into = room.blocks};
  if (x.blocks) asked.blocks = room.blocks.copy_(*x.blocks);
  // The copies have been made: from here on there are launches alone.
  cuda::Together together(device.stream(), problems[0].in_one_graph);
  static_cast<void>(cuda::pool_forward(k, v, {x.geometry, problems[0].packing, S, N}, cmp));
  const cuda::AllForward done = cuda::attend_all_forward(std::move(given), problems, x.cu_seqlens, asked);
  together.submit();
  return done.o;
}

void record_whole(const Tensor& o, const Tensor& memory, const RoomSizes& sizes, const AttentionArgs& x,
                  std::string_view backend) {
  const std::shared_ptr<AttentionNode> node(new AttentionNode(), torch::autograd::deleteNode);
  torch::autograd::edge_list edges;
  edges.reserve(cuda::kAllInputs);
  for (const Tensor* input : {&x.q, &x.k, &x.v, &x.k_sel, &x.v_sel, &x.k_win, &x.v_win, &x.gates})
    edges.push_back(torch::autograd::impl::gradient_edge(*input));
  node->set_next_edges(std::move(edges));
  std::size_t next = 0;
  for (const Tensor* input : {&x.q, &x.k_sel, &x.v_sel, &x.k_win, &x.v_win, &x.gates})
    node->given[next++] = SavedVariable(*input, /*is_output=*/false);
  node->room = SavedVariable(memory, /*is_output=*/false);
  if (x.cu_seqlens) node->cu_seqlens = SavedVariable(*x.cu_seqlens, /*is_output=*/false);
  node->sizes = sizes;
  node->g = x.geometry;
  node->backend = backend;
  torch::autograd::set_history(o, node);
}

// What is asked of a call before it is ours, as far as that is no value of a tensor.
struct Asked {
  struct Input {
    at::ScalarType type = at::kFloat;
    at::Device device = at::kCPU;
    std::array<std::int64_t, 4> sizes{};
    bool operator==(const Input&) const = default;
  };
  std::array<Input, cuda::kAllInputs> inputs;
  std::array<std::int64_t, 5> geometry{};
  std::string backend;
  bool operator==(const Asked&) const = default;
};

// Nothing where values are looked at too, or where the call is no good in any case.
std::optional<Asked> asked_of(const AttentionArgs& x, std::string_view backend) {
  if (x.cu_seqlens || x.blocks) return {};
  std::optional<Asked> asked(std::in_place);
  std::size_t i = 0;
  for (const Tensor* t : {&x.q, &x.k, &x.v, &x.k_sel, &x.v_sel, &x.k_win, &x.v_win, &x.gates}) {
    if (!t->defined() || t->dim() != 4) return {};
    auto& [type, device, sizes] = asked->inputs[i++];
    type = t->scalar_type();
    device = t->device();
    std::copy_n(t->sizes().begin(), sizes.size(), sizes.begin());
  }
  const Geometry& g = x.geometry;
  asked->geometry = {g.l, g.d, g.l_sel, g.n_sel, g.w};
  asked->backend = backend;
  return asked;
}

struct Ours {
  RoomSizes sizes;
  std::int64_t bytes = 0;
};

// Nothing where the call is not ours to compute.
std::optional<Ours> taken(const AttentionArgs& x, std::string_view backend) {
  check(x);
  const Call call =
      call_of(x.q, {.G = x.k.size(2), .Dv = x.v.size(3), .geometry = x.geometry, .packed = x.cu_seqlens.has_value()});
  if (!by_kernels(call, Op::compress, backend) || !by_kernels(call, kAttendParts, backend)) return {};
  const RoomSizes sizes = sizes_of(x);
  const std::int64_t bytes = sizes.bytes();
  return bytes > kMostRoomBytes ? std::nullopt : std::optional(Ours{sizes, bytes});
}

// Layer after layer asks the same: the answer to the thread's call before is kept, where it was yes.
std::optional<Ours> taken_or_known(const AttentionArgs& x, std::string_view backend) {
  thread_local std::optional<std::pair<Asked, Ours>> known;
  auto asked = asked_of(x, backend);
  if (asked && known && known->first == *asked) return known->second;
  const auto ours = taken(x, backend);
  if (asked && ours) known.emplace(*std::move(asked), *ours);
  return ours;
}

// Undefined where it is not ours to compute.
Tensor straight(const AttentionArgs& x, std::string_view backend) {
  const auto ours = taken_or_known(x, backend);
  if (!ours) return {};
  const bool recorded =
      torch::autograd::compute_requires_grad(x.q, x.k, x.v, x.k_sel, x.v_sel, x.k_win, x.v_win, x.gates);
  const Tensor memory = memory_for_room(ours->bytes, x.q, recorded);
  const Tensor o = forward_in(*PassingRoom(memory, ours->sizes), x);
  if (recorded) record_whole(o, memory, ours->sizes, x, backend);
  return o;
}

Tensor attention_output(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& k_sel, const Tensor& v_sel,
                        const Tensor& k_win, const Tensor& v_win, const Tensor& gates, const MaybeTensor& blocks,
                        const MaybeTensor& cu_seqlens, std::int64_t l, std::int64_t d, std::int64_t l_sel,
                        std::int64_t n_sel, std::int64_t w, std::string_view backend) {
  if (nobody_listens(q, k, v, k_sel, v_sel, k_win, v_win, gates, blocks, cu_seqlens)) {
    const Tensor o = straight(
        {q, k, v, k_sel, v_sel, k_win, v_win, gates, geometry_of(l, d, l_sel, n_sel, w), cu_seqlens, blocks}, backend);
    if (o.defined()) return o;
  }
  return std::get<0>(
      operator_of<&attention>("nsa::attention")
          .call(q, k, v, k_sel, v_sel, k_win, v_win, gates, blocks, cu_seqlens, l, d, l_sel, n_sel, w, backend));
}

TORCH_LIBRARY_IMPL(nsa, CompositeImplicitAutograd, m) { m.impl("attention_output", attention_output); }

}  // namespace

}  // namespace nsa::python
