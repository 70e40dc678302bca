#include "nsa/cuda/decode.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <limits>

#include "nsa/cuda/rows.hpp"
#include "nsa/cuda/stream.hpp"
#include "nsa/kernels/plan/decode_plan.hpp"
#include "nsa/ops.hpp"

namespace nsa::cuda {

namespace {

std::int64_t rows_in(const at::Tensor& cache) { return cache.defined() ? cache.size(2) : 0; }

// All of the kernels' parameters that are no pointers.
kernels::Decode sizes_of(const DecodeArgs& args) {
  kernels::Decode p;
  p.geometry = geometry_of(args.geometry);
  p.B = size_of(args.q, 0);
  p.t = static_cast<int>(args.t);
  p.N = static_cast<int>(rows_in(args.k_cmp));
  p.window = static_cast<int>(rows_in(args.k_win));
  p.Hq = size_of(args.q, 2);
  p.G = size_of(args.k_sel, 1);
  p.Dk = size_of(args.q, 3);
  p.Dv = size_of(args.v_sel, 3);
  p.scale = scale_of(args.q);
  p.storage = storage_of(args.q);
  return p;
}

// Of a cache [B,G,rows,D], as the kernels name its dimensions.
kernels::Rows cached(std::string_view name, const at::Tensor& cache) {
  return cache.defined() ? rows_of(name, cache.transpose(1, 2)) : kernels::Rows{};
}

// What does not fit the rest; "" where all does.
std::string misfit(const DecodeArgs& args) {
  if (args.q.dim() != 4 || args.q.size(1) != 1) return "q is not [B,1,Hq,Dk]";
  if (!args.k_sel.defined() || !args.v_sel.defined() || !args.k_win.defined() || !args.v_win.defined())
    return "the selected branch's or the window's cache is empty";
  if (args.k_sel.dim() != 4 || args.v_sel.dim() != 4) return "a cache is not [B,G,rows,D]";
  const std::int64_t B = args.q.size(0), Dk = args.q.size(3), G = args.k_sel.size(1), Dv = args.v_sel.size(3);
  const auto fits = [&](const at::Tensor& k, const at::Tensor& v, std::int64_t rows) {
    const auto one = [&](const at::Tensor& x, std::int64_t width) {
      return x.defined() && x.sizes() == at::IntArrayRef({B, G, rows, width}) &&
             x.scalar_type() == args.q.scalar_type() && x.device() == args.q.device();
    };
    return rows == 0 ? !k.defined() && !v.defined() : one(k, Dk) && one(v, Dv);
  };
  if (!fits(args.k_sel, args.v_sel, args.t + 1)) return "the selected branch's caches are not [B,G,t+1,D] of q's type";
  if (!fits(args.k_cmp, args.v_cmp, compressed_blocks(args.geometry, args.t + 1)))
    return "the compressed branch's caches are not the complete blocks, [B,G,N_c,D] of q's type";
  if (!fits(args.k_win, args.v_win, args.k_win.size(2))) return "the window's caches are not [B,G,keys,D] of q's type";
  const auto& gates = args.gates;
  const bool served = gates.defined() && gates.sizes() == at::IntArrayRef({B, 1, G, 3}) &&
                      gates.device() == args.q.device() &&
                      (gates.scalar_type() == at::kFloat || gates.scalar_type() == args.q.scalar_type());
  return served ? "" : "gates are not [B,1,G,3] in fp32 or q's type";
}

}  // namespace

std::string decode_refusal(const DecodeArgs& args) {
  if (auto reason = misfit(args); !reason.empty()) return reason;
  const CallOptions options{args.k_sel.size(1), args.v_sel.size(3), args.geometry};
  if (auto reason = refusal(call_of(args.q, options), Op::attend); !reason.empty()) return reason;
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max() / 2;
  if (args.t > kMost) return fmt::format("token {}; served: up to {}", args.t, kMost);
  return kernels::decode_refusal(sizes_of(args));
}

Decoded decode(const DecodeArgs& args, const std::function<void(std::string_view)>& on_kernel) {
  if (const auto reason = decode_refusal(args); !reason.empty())
    throw Unsupported(fmt::format("cuda does not serve this step: {}; use the step's functions one by one", reason));
  const at::NoGradGuard no_grad;
  const OnDeviceOf device(args.q);
  const auto q = aligned(args.q), gates = args.gates.contiguous();
  kernels::Decode p = sizes_of(args);
  const auto plan = kernels::plan_decode(p, kernels::current_device());

  Decoded result;
  const auto rows = [&] { return empty({q.size(0), 1, q.size(2), args.v_sel.size(3)}, q.scalar_type(), q); };
  result.o = rows();
  result.blocks = empty({q.size(0), 1, args.k_sel.size(1), args.geometry.n_sel}, at::kInt, q);
  if (args.branches)
    for (at::Tensor* branch : {&result.cmp, &result.sel, &result.win}) *branch = rows();
  result.selected = plan.cuts.selected_tokens(p);

  p.q = rows_of("q", q);
  p.k_cmp = cached("k_cmp", args.k_cmp), p.v_cmp = cached("v_cmp", args.v_cmp);
  p.k_sel = cached("k_sel", args.k_sel), p.v_sel = cached("v_sel", args.v_sel);
  p.k_win = cached("k_win", args.k_win), p.v_win = cached("v_win", args.v_win);
  p.gates = gates.const_data_ptr();
  p.gates_fp32 = gates.scalar_type() == at::kFloat;
  p.o = rows_of("o", result.o);
  if (args.branches) {
    p.branch[0] = rows_of("cmp", result.cmp);
    p.branch[1] = rows_of("sel", result.sel);
    p.branch[2] = rows_of("win", result.win);
  }
  p.blocks = result.blocks.data_ptr<std::int32_t>();
  const auto space = workspace(plan.workspace, q);
  p.workspace = start_of(space);
  kernels::decode(p, plan, device.stream());
  if (on_kernel) on_kernel(to_string(plan.variant));
  return result;
}

}  // namespace nsa::cuda
