#include "nsa/kernels/tests/oracle.hpp"

#include <algorithm>
#include <optional>
#include <set>

#include "nsa/kernels/plan/attention_plan.hpp"
#include "nsa/kernels/tests/emulation/emulator.hpp"
#include "nsa/kernels/tests/in_doubles.hpp"

namespace nsa::kernels {

namespace {

// Largest error of a row against the row's size, the size of a typical row being the least that counts. NaN is NaN.
std::string compare(const std::string& name, const Tensor& x, Sums& want, int B, double allowed) {
  double all = 0, worst = 0;
  for (const double value : want.values) all += std::isnan(value) ? 0 : value * value;
  const double typical =
      std::max(0.05, std::sqrt(all / static_cast<double>(std::max<std::size_t>(want.values.size(), 1))));
  std::string where;
  for (int b = 0; b < B; ++b)
    for (int s = 0; s < want.S; ++s)
      for (int h = 0; h < want.H; ++h) {
        const double* row = want.row(b, s, h);
        double size = typical, error = 0;
        for (int d = 0; d < want.D; ++d) {
          const double got = x.at(b, s, h, d);
          if (std::isnan(got) && std::isnan(row[d])) continue;
          size = std::max(size, std::abs(row[d]));
          const double e = std::abs(got - row[d]);
          error = e <= 1e30 ? std::max(error, e) : 1e30;  // a NaN too
        }
        if (error / size > worst) {
          worst = error / size;
          where = " at b " + std::to_string(b) + " row " + std::to_string(s) + " head " + std::to_string(h);
        }
      }
  std::string what;
  if (worst > allowed) what += name + " is off by " + std::to_string(worst) + where + "; ";
  if (!x.surroundings_are_untouched()) what += name + " was written beyond its elements; ";
  return what;
}

// Of a row's statistics; 1e30 where one is NaN and the other is not.
double statistics_error(const Weights& wanted, double maximum, double sum) {
  if (wanted.each.empty()) return maximum == -INFINITY && sum == 0 ? 0 : 1e30;
  if (std::isnan(wanted.total)) return std::isnan(sum) ? 0 : 1e30;
  return std::abs(maximum - wanted.maximum) + std::abs(sum / wanted.total - 1);
}

// Whether token t's rows may share a tile with rows that see V's NaN, or with keys beside it: what kernels/README.md
// leaves open. Intervals: tiles of 192 rows, steps of up to 144 keys (kernels/README.md). Selected, by parts: 64 rows,
// whose forced blocks are the NaN's for the tokens of its block and of the next one.
bool may_share_a_tile(const Problem& x, const Documents& documents, int t) {
  if (x.call.mask != Mask::selected) {
    const int tile = 192 / x.h + 1;
    return t - x.geometry.w - tile <= x.nan_value && x.nan_value <= t + tile + 144;
  }
  const int l_sel = x.geometry.l_sel, tile = 64 / x.h + 1, first = documents.first_token[x.nan_value];
  const int block = first + (x.nan_value - first) / l_sel * l_sel;
  return block - tile <= t && t < block + 2 * l_sel + tile;
}

// Of x's storage type: a rounded sum.
double rounded_sum(Storage storage, double a, double b) {
  const float sum = static_cast<float>(a) + static_cast<float>(b);
  return value_of(storage, bits_of(storage, sum));
}

// 256 bytes aligned, and watched behind.
struct Workspace {
  std::vector<char> bytes;
  std::int64_t size;
  explicit Workspace(std::int64_t wanted) : bytes(static_cast<std::size_t>(wanted) + 1024, kPoison), size(wanted) {}
  void* at() { return bytes.data() + (256 - reinterpret_cast<std::uintptr_t>(bytes.data()) % 256); }
  bool untouched_behind() {
    const char* end = static_cast<char*>(at()) + size;
    return std::all_of(end, static_cast<const char*>(bytes.data() + bytes.size()), [](char c) { return c == kPoison; });
  }
  static constexpr char kPoison = '\x7f';
};

template <typename Action>
void for_all(int B, int S, int H, int D, Action&& action) {
  for (int b = 0; b < B; ++b)
    for (int s = 0; s < S; ++s)
      for (int h = 0; h < H; ++h)
        for (int d = 0; d < D; ++d) action(b, s, h, d);
}

// The variant whose kernels these are, if it is one variant's.
std::optional<Variant> variant_of(const std::set<std::string>& names) {
  const auto has = [&](auto... name) { return (names.contains(name) || ...); };
  const bool decides = has("choose_ways");
  const bool by_mma = has("attention_forward", "selected_forward", "attention_dq", "selected_dq", "attention_dkv");
  if (by_mma) {
    if (decides || has("joint", "parts", "attention_forward_hopper", "attention_dq_hopper", "attention_dkv_hopper"))
      return std::nullopt;
    return Variant::mma_sync;
  }
  if (has("forward_and_select_hopper")) return Variant::intervals_and_choice;
  if (has("attention_backward_hopper")) return Variant::merged_intervals;
  if (has("parts_backward")) return decides ? Variant::joint_or_merged_parts : Variant::merged_parts;
  if (has("parts")) return decides ? Variant::joint_or_parts : Variant::parts;
  if (has("joint")) return Variant::joint;
  if (has("invert_choice")) return Variant::lists;
  if (has("attention_forward_hopper", "attention_dq_hopper", "attention_dkv_hopper")) return Variant::intervals;
  return std::nullopt;
}
// Of what was launched since take_launched().
std::string differences_from(const AttentionPlan& plan, const char* pass) {
  const emulation::Launched launched = emulation::take_launched();
  if (variant_of(launched.names) == plan.variant && launched.kernels <= plan.launches) return "";
  std::string what = std::string(pass) + ": planned " + std::string(to_string(plan.variant)) + " in at most " +
                     std::to_string(plan.launches) + " kernels, launched " + std::to_string(launched.kernels) + ":";
  for (const std::string& name : launched.names) what += " " + name;
  return what + "; ";
}

// window_and_combine against the window alone, whose results are o and stats, and combine_forward. `make`: a tensor
// from (S, H, D).
template <typename Make>
std::string combined_differences(const AttentionForward& f, const AttentionPlan& plan, const Tensor& o,
                                 const std::vector<float>& stats, std::mt19937& random, Make&& make) {
  Tensor cmp = make(f.S, f.Hq, f.Dv), sel = make(f.S, f.Hq, f.Dv), win = make(f.S, f.Hq, f.Dv);
  Tensor sum = make(f.S, f.Hq, f.Dv), wanted = make(f.S, f.Hq, f.Dv);
  cmp.fill(random, 1);
  sel.fill(random, 1);
  const std::size_t count = static_cast<std::size_t>(f.B) * f.S * f.G * 3;
  std::vector<float> wide(count);
  std::vector<std::uint16_t> narrow(count);
  for (std::size_t i = 0; i < count; ++i) {
    narrow[i] = bits_of(f.storage, std::uniform_real_distribution<double>(-1, 1)(random));
    wide[i] = static_cast<float>(value_of(f.storage, narrow[i]));
  }
  std::string what;
  for (const bool fp32 : {false, true}) {
    std::vector<float> own_stats(stats.size(), -7.f);
    AttentionForward own = f;
    own.o = win.rows();
    own.stats = own_stats.data();
    Combine p;
    p.gates = fp32 ? static_cast<const void*>(wide.data()) : narrow.data();
    p.gates_fp32 = fp32;
    p.branch[0] = cmp.rows(), p.branch[1] = sel.rows(), p.branch[2] = win.rows(), p.o = sum.rows();
    p.B = f.B, p.S = f.S, p.Hq = f.Hq, p.G = f.G, p.Dv = f.Dv;
    p.storage = f.storage;
    window_and_combine(own, plan, p, nullptr);
    p.branch[2] = o.rows(), p.o = wanted.rows();
    combine_forward(p, nullptr);
    if (!win.same_bits(o) || own_stats != stats) what += "the window beside the sum is another; ";
    if (!sum.same_bits(wanted) || !sum.surroundings_are_untouched()) what += "the window's sum is another; ";
  }
  return what;
}

void plant_nans(const Problem& x, Tensor& k, Tensor& v, Tensor& dout) {
  for (int group = 0; group < x.G; ++group) {
    if (x.nan_key >= 0) k.set(0, x.nan_key, group, 0, NAN);
    if (x.nan_value >= 0)
      for (int d = 0; d < x.Dv; ++d) v.set(0, x.nan_value, group, d, NAN);
  }
  if (x.nan_gradient >= 0)
    for (int head = 0; head < x.h * x.G; ++head) dout.set(0, x.nan_gradient, head, 0, NAN);
}

// A table of blocks [B,S,G,n]: valid numbers, some twice, some before the document or behind the token.
std::vector<int> random_choice(const Problem& x, const Documents& documents, std::mt19937& random) {
  const Geometry& g = x.geometry;
  std::vector<int> blocks;
  for (int b = 0; b < x.B; ++b)
    for (int t = 0; t < x.S; ++t)
      for (int group = 0; group < x.G; ++group) {
        const int last = (t - documents.first_token[t]) / g.l_sel;
        const bool empty = random() % x.empty == 0;
        const bool alike = t >= x.alike_from && random() % 128 != 0;
        for (int i = 0; i < g.n; ++i) {
          if (alike) {
            blocks.push_back(blocks[blocks.size() - static_cast<std::size_t>(x.G * g.n)]);
            continue;
          }
          const int kind = static_cast<int>(random() % 8);
          int number = i == 0 ? 0 : static_cast<int>(random() % (last + 1));
          if (empty || kind == 0) number = random() % 2 ? -1 : last + 1 + static_cast<int>(random() % 3);
          if (kind == 1 && !empty && i > 0) number = blocks.back();
          blocks.push_back(number);
        }
      }
  return blocks;
}

// The backward pass once more, as the call wants it, whose results are `got`. `make`: a tensor [B, rows, heads, width].
struct Gradients {
  const Tensor &dq, &dk, &dv;
};
template <typename Make>
std::string repeated_differences(const Problem& x, const AttentionBackward& backward, const AttentionPlan& plan,
                                 const Gradients& got, std::mt19937& random, const Make& make) {
  const auto& [dq, dk, dv] = got;
  const int Hq = backward.forward.Hq, N = backward.forward.N;
  std::string what;
  if (x.call.adds) {
    Tensor before = make(x.S, Hq, x.Dk), sum = make(x.S, Hq, x.Dk), wanted = make(x.S, Hq, x.Dk);
    Tensor dk2 = make(N, x.G, x.Dk), dv2 = make(N, x.G, x.Dv);
    Workspace space(plan.workspace);
    before.fill(random, 1);
    for_all(x.B, x.S, Hq, x.Dk, [&](int b, int t, int head, int d) {
      sum.set(b, t, head, d, before.at(b, t, head, d));
      wanted.set(b, t, head, d, rounded_sum(x.storage, before.at(b, t, head, d), dq.at(b, t, head, d)));
    });
    AttentionBackward other = backward;
    other.dq = sum.rows(), other.dk = dk2.rows(), other.dv = dv2.rows(), other.workspace = space.at();
    other.adds_dq = true;
    attention_backward(other, plan, nullptr);
    if (!sum.same_bits(wanted) || !dk2.same_bits(dk) || !dv2.same_bits(dv)) what += "dQ is not added; ";
  }
  if (x.call.again) {
    Tensor dq2 = make(x.S, Hq, x.Dk), dk2 = make(N, x.G, x.Dk), dv2 = make(N, x.G, x.Dv);
    Workspace space(plan.workspace);
    AttentionBackward other = backward;
    other.dq = dq2.rows(), other.dk = dk2.rows(), other.dv = dv2.rows(), other.workspace = space.at();
    emulation::set_order(1000);
    attention_backward(other, plan, nullptr);
    if (!dq2.same_bits(dq) || !dk2.same_bits(dk) || !dv2.same_bits(dv)) what += "other bits; ";
  }
  return what;
}

}  // namespace

std::string differences(Problem x) {
  std::mt19937 random(1);
  if (!x.boundaries.empty()) x.S = x.boundaries.back();
  const bool packed = !x.boundaries.empty();
  const Geometry& g = x.geometry;
  const Documents documents(packed ? x.boundaries : std::vector<int>{0, x.S}, g);
  const int N = x.call.mask == Mask::compressed ? documents.compressed : x.S, Hq = x.h * x.G;
  const auto tensor = [&](int S, int H, int D) { return Tensor(x.storage, x.B, S, H, D, x.order, x.room); };
  Tensor q = tensor(x.S, Hq, x.Dk), k = tensor(N, x.G, x.Dk), v = tensor(N, x.G, x.Dv), o = tensor(x.S, Hq, x.Dv);
  Tensor dout = tensor(x.S, Hq, x.Dv), dq = tensor(x.S, Hq, x.Dk), dk = tensor(N, x.G, x.Dk), dv = tensor(N, x.G, x.Dv);
  q.fill(random, 1.5 * x.size);
  k.fill(random, x.size);
  v.fill(random, 1);
  dout.fill(random, 1);
  plant_nans(x, k, v, dout);
  const std::size_t rows = static_cast<std::size_t>(x.B) * Hq * x.S;
  std::vector<float> stats(rows * 2 + 8, -7.f), delta(rows + 8, -7.f);
  std::vector<int> blocks;
  AttentionForward f;
  if (x.call.mask == Mask::selected) {
    blocks = random_choice(x, documents, random);
    f.blocks = blocks.data();
    if (packed)
      f.selection = {static_cast<int>(documents.starts.size()), documents.document_blocks.data(),
                     documents.starts.data(), documents.ends.data()};
  }
  f.q = q.rows(), f.k = k.rows(), f.v = v.rows(), f.o = o.rows();
  f.stats = stats.data();
  if (packed) f.packed = {documents.first_token.data(), documents.first_block.data()};
  f.geometry = g;
  f.B = x.B, f.S = x.S, f.N = N, f.Hq = Hq, f.G = x.G, f.Dk = x.Dk, f.Dv = x.Dv;
  f.scale = static_cast<float>(1 / std::sqrt(x.Dk));
  f.storage = x.storage;
  f.mask = x.call.mask;
  const Device device{x.call.hopper, emulation::kDevice.sm_count, x.call.limits};
  std::string what;
  const AttentionPlan plan = plan_forward(f, device);
  Workspace forward_space(plan.workspace);
  f.workspace = forward_space.at();
  (void)emulation::take_launched();
  attention_forward(f, plan, nullptr);
  what += differences_from(plan, "forward");
  AttentionBackward backward{f, dout.rows(), delta.data(), dq.rows(), dk.rows(), dv.rows(), nullptr};
  backward.beside = emulation::second_stream();
  const AttentionPlan backward_plan = plan_backward(backward, device).main;
  Workspace backward_space(x.call.forward_alone ? 0 : backward_plan.workspace);
  backward.workspace = backward_space.at();
  if (!x.call.forward_alone) {
    attention_delta({o.rows(), dout.rows(), delta.data(), x.B, x.S, Hq, x.Dv, x.storage}, nullptr);
    (void)emulation::take_launched();
    attention_backward(backward, backward_plan, nullptr);
    what += differences_from(backward_plan, "backward");
  }

  if (x.call.combines) what += combined_differences(f, plan, o, stats, random, tensor);
  what += repeated_differences(x, backward, backward_plan, {dq, dk, dv}, random, tensor);

  InDoubles wanted{values_of(q, x.B, x.S, Hq, x.Dk), values_of(k, x.B, N, x.G, x.Dk), values_of(v, x.B, N, x.G, x.Dv),
                   values_of(dout, x.B, x.S, Hq, x.Dv)};
  double worst_score = 0, worst_delta = 0;
  for (int b = 0; b < x.B; ++b)
    for (int t = 0; t < x.S; ++t)
      for (int head = 0; head < Hq; ++head) {
        const double* own_dout = wanted.dout.row(b, t, head);
        const int group = head / x.h;
        const std::vector<int> keys = keys_of(x, documents, blocks, b, t, group);
        const Weights weights(wanted.q.row(b, t, head), wanted.k, keys, b, group, f.scale * 1.4426950408889634);
        double* out = wanted.o.row(b, t, head);
        for (std::size_t i = 0; i < keys.size(); ++i) {
          const double* value = wanted.v.row(b, keys[i], group);
          for (int d = 0; d < x.Dv; ++d) out[d] += weights.each[i] / weights.total * value[d];
        }
        if (x.nan_value >= 0 && !keys.empty() && !std::binary_search(keys.begin(), keys.end(), x.nan_value) &&
            may_share_a_tile(x, documents, t))
          for (int d = 0; d < x.Dv; ++d) out[d] = o.at(b, t, head, d);
        const std::size_t at = (static_cast<std::size_t>(b) * Hq + head) * x.S + t;
        const double error = statistics_error(weights, stats[at * 2], stats[at * 2 + 1]);
        if (x.size == 1) worst_score = error <= 1e30 ? std::max(worst_score, error) : 1e30;
        if (x.call.forward_alone) continue;
        double own_delta = 0;  // of the rounded o: that is what the gradients are made with
        for (int d = 0; d < x.Dv; ++d) own_delta += o.at(b, t, head, d) * own_dout[d];
        const bool both_nan = std::isnan(delta[at]) && std::isnan(own_delta);
        const double delta_error = both_nan ? 0 : std::abs(delta[at] - own_delta) / (1 + std::abs(own_delta));
        worst_delta = delta_error <= 1e30 ? std::max(worst_delta, delta_error) : 1e30;
        wanted.add_gradients({b, t, head, group}, keys, weights, own_delta, f.scale);
      }
  if (worst_score > 1e-4) what += "stats are off by " + std::to_string(worst_score) + "; ";
  if (worst_delta > 1e-4) what += "delta is off by " + std::to_string(worst_delta) + "; ";
  const double allowed = x.storage == Storage::bf16 ? 0.02 : 0.0025;
  what += compare("o", o, wanted.o, x.B, allowed);
  if (!x.call.forward_alone)
    what += compare("dq", dq, wanted.dq, x.B, allowed) + compare("dk", dk, wanted.dk, x.B, allowed);
  if (!x.call.forward_alone && x.nan_gradient < 0) what += compare("dv", dv, wanted.dv, x.B, allowed);
  if (!std::equal(x.ways.begin(), x.ways.end(), static_cast<const int*>(forward_space.at())))  // begins with them
    what += "another way; ";
  if (!forward_space.untouched_behind() || !backward_space.untouched_behind()) what += "a write behind the workspace; ";
  for (int i = 0; i < 8; ++i)
    if (stats[rows * 2 + i] != -7.f || delta[rows + i] != -7.f) what += "a write behind stats or delta; ";
  return what;
}

}  // namespace nsa::kernels
