#include "nsa/cuda/select.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "nsa/cuda/cuda.hpp"
#include "nsa/cuda/rows.hpp"
#include "nsa/cuda/stream.hpp"
#include "nsa/kernels/plan/select_plan.hpp"

namespace nsa::cuda {

namespace {

constexpr std::int64_t kWidestValue = 128;

// The statistics alone: attention over the compressed blocks with the keys as values, and its output thrown away.
at::Tensor statistics(const at::Tensor& q, const at::Tensor& k, const Problem& problem) {
  const auto values = k.narrow(3, 0, std::min(k.size(3), kWidestValue));
  return attend_forward(q, k, values, {}, problem).stats;
}

}  // namespace

at::Tensor select(const SelectArgs& args, const OnLaunch& on_launch) {
  return select_on(std::nullopt, args, [&](std::string_view kernel) {
    if (on_launch) on_launch(Op::select, {.kernel = std::string(kernel)});
  });
}

at::Tensor select_on(const std::optional<kernels::Device>& gpu, const SelectArgs& args,
                     const std::function<void(std::string_view)>& on_kernel) {
  check(args);
  const std::int64_t width = std::min(args.q.size(3), kWidestValue);  // of values; the function takes none
  require(args.q,
          {.G = args.k_cmp.size(2), .Dv = width, .geometry = args.geometry, .packed = args.cu_seqlens.has_value()},
          Op::select);
  const OnDeviceOf device(args.q);
  Problem problem = problem_of(kernels::Mask::compressed, args.q, args.geometry, args.cu_seqlens);
  if (gpu) problem.device = *gpu;
  return select_for(problem, args, on_kernel);
}

at::Tensor select_for(const Problem& problem, const SelectArgs& args,
                      const std::function<void(std::string_view)>& on_kernel, const at::Tensor& into) {
  const at::NoGradGuard no_grad;
  const auto& g = args.geometry;
  const OnDeviceOf device(args.q);
  const auto q = aligned(args.q), k = aligned(args.k_cmp);
  const auto stats = args.stats ? args.stats->contiguous() : statistics(q, k, problem);
  auto blocks = into.defined() ? into : empty({q.size(0), q.size(1), k.size(2), g.n_sel}, at::kInt, q);

  kernels::Select p;
  p.q = rows_of("q", q);
  p.k_cmp = rows_of("k_cmp", k);
  p.stats = stats.const_data_ptr<float>();
  p.blocks = blocks.data_ptr<std::int32_t>();
  p.packed = problem.packing.kernel_view();
  p.geometry = geometry_of(g);
  p.B = size_of(q, 0);
  p.S = size_of(q, 1);
  p.N = size_of(k, 1);
  p.Hq = size_of(q, 2);
  p.G = size_of(k, 2);
  p.Dk = size_of(q, 3);
  p.scale = scale_of(q);
  p.storage = storage_of(q);
  const auto plan = kernels::plan_select(p, problem.device);
  kernels::select_blocks(p, plan, device.stream());
  if (on_kernel) on_kernel(to_string(plan.variant));
  return blocks;
}

}  // namespace nsa::cuda
