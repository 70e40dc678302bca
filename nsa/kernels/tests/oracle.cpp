#include "nsa/kernels/tests/oracle.hpp"

#include <algorithm>
#include <optional>
#include <set>

#include "nsa/kernels/plan/attention_plan.hpp"
#include "nsa/kernels/tests/emulation/emulator.hpp"

namespace nsa::kernels {

namespace {

// What the oracle computes: rows as [B,S,H,D].
struct Sums {
  int S, H, D;
  std::vector<double> values;
  Sums(int batches, int rows, int heads, int columns)
      : S(rows), H(heads), D(columns), values(static_cast<std::size_t>(batches) * rows * heads * columns) {}
  double* row(int b, int s, int h) { return &values[((static_cast<std::size_t>(b) * S + s) * H + h) * D]; }
};

Sums values_of(const Tensor& x, int batches, int rows, int heads, int columns) {
  Sums all(batches, rows, heads, columns);
  for (int b = 0; b < batches; ++b)
    for (int s = 0; s < rows; ++s)
      for (int h = 0; h < heads; ++h)
        for (int d = 0; d < columns; ++d) all.row(b, s, h)[d] = x.at(b, s, h, d);
  return all;
}

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
  for (int group = 0; group < x.G; ++group) {
    if (x.nan_key >= 0) k.set(0, x.nan_key, group, 0, NAN);
    if (x.nan_value >= 0)
      for (int d = 0; d < x.Dv; ++d) v.set(0, x.nan_value, group, d, NAN);
  }
  dout.fill(random, 1);
  for (int head = 0; x.nan_gradient >= 0 && head < Hq; ++head) dout.set(0, x.nan_gradient, head, 0, NAN);
  const std::size_t rows = static_cast<std::size_t>(x.B) * Hq * x.S;
  std::vector<float> stats(rows * 2 + 8, -7.f), delta(rows + 8, -7.f);
  std::vector<int> blocks;
  AttentionForward f;
  if (x.call.mask == Mask::selected) {
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
  const AttentionPlan backward_plan = plan_backward(backward, device);
  Workspace backward_space(x.call.forward_alone ? 0 : backward_plan.workspace);
  backward.workspace = backward_space.at();
  if (!x.call.forward_alone) {
    attention_delta({o.rows(), dout.rows(), delta.data(), x.B, x.S, Hq, x.Dv, x.storage}, nullptr);
    (void)emulation::take_launched();
    attention_backward(backward, backward_plan, nullptr);
    what += differences_from(backward_plan, "backward");
  }

  if (x.call.combines) what += combined_differences(f, plan, o, stats, random, tensor);
  if (x.call.adds) {
    Tensor before = tensor(x.S, Hq, x.Dk), sum = tensor(x.S, Hq, x.Dk), wanted = tensor(x.S, Hq, x.Dk);
    Tensor dk2 = tensor(N, x.G, x.Dk), dv2 = tensor(N, x.G, x.Dv);
    Workspace space(backward_space.size);
    before.fill(random, 1);
    for_all(x.B, x.S, Hq, x.Dk, [&](int b, int t, int head, int d) {
      sum.set(b, t, head, d, before.at(b, t, head, d));
      wanted.set(b, t, head, d, rounded_sum(x.storage, before.at(b, t, head, d), dq.at(b, t, head, d)));
    });
    AttentionBackward other = backward;
    other.dq = sum.rows(), other.dk = dk2.rows(), other.dv = dv2.rows(), other.workspace = space.at();
    other.adds_dq = true;
    attention_backward(other, backward_plan, nullptr);
    if (!sum.same_bits(wanted) || !dk2.same_bits(dk) || !dv2.same_bits(dv)) what += "dQ is not added; ";
  }
  if (x.call.again) {
    Tensor dq2 = tensor(x.S, Hq, x.Dk), dk2 = tensor(N, x.G, x.Dk), dv2 = tensor(N, x.G, x.Dv);
    Workspace space(backward_space.size);
    AttentionBackward other = backward;
    other.dq = dq2.rows(), other.dk = dk2.rows(), other.dv = dv2.rows(), other.workspace = space.at();
    emulation::set_order(1000);
    attention_backward(other, backward_plan, nullptr);
    if (!dq2.same_bits(dq) || !dk2.same_bits(dk) || !dv2.same_bits(dv)) what += "other bits; ";
  }

  Sums want_o(x.B, x.S, Hq, x.Dv), want_dq(x.B, x.S, Hq, x.Dk), want_dk(x.B, N, x.G, x.Dk), want_dv(x.B, N, x.G, x.Dv);
  Sums queries = values_of(q, x.B, x.S, Hq, x.Dk), douts = values_of(dout, x.B, x.S, Hq, x.Dv);
  Sums key_rows = values_of(k, x.B, N, x.G, x.Dk), value_rows = values_of(v, x.B, N, x.G, x.Dv);
  double worst_score = 0, worst_delta = 0;
  for (int b = 0; b < x.B; ++b)
    for (int t = 0; t < x.S; ++t)
      for (int head = 0; head < Hq; ++head) {
        const double *own_q = queries.row(b, t, head), *own_dout = douts.row(b, t, head);
        const int group = head / x.h, first = documents.first_token[t], position = t - first;
        std::vector<int> keys;
        if (x.call.mask == Mask::window)
          for (int i = std::max(first, t - g.w + 1); i <= t; ++i) keys.push_back(i);
        if (x.call.mask == Mask::compressed)
          for (int i = 0; i * g.d + g.l - 1 <= position; ++i) keys.push_back(documents.first_block[t] + i);
        if (x.call.mask == Mask::selected) {
          std::set<int> chosen;
          for (int i = 0; i < g.n; ++i)
            chosen.insert(blocks[((static_cast<std::size_t>(b) * x.S + t) * x.G + group) * g.n + i]);
          for (const int number : chosen)
            if (number >= 0)
              for (int i = 0; i < g.l_sel; ++i)
                if (first + number * static_cast<std::int64_t>(g.l_sel) + i <= t)
                  keys.push_back(first + number * g.l_sel + i);
        }
        std::vector<double> weight(keys.size());
        double maximum = -INFINITY, total = 0;
        for (std::size_t i = 0; i < keys.size(); ++i) {
          const double* key = key_rows.row(b, keys[i], group);
          for (int d = 0; d < x.Dk; ++d) weight[i] += own_q[d] * key[d];
          weight[i] *= f.scale * 1.4426950408889634;
          maximum = std::max(maximum, weight[i]);
        }
        for (double& w : weight) total += w = std::exp2(w - maximum);
        double* out = want_o.row(b, t, head);
        for (std::size_t i = 0; i < keys.size(); ++i) {
          const double* value = value_rows.row(b, keys[i], group);
          for (int d = 0; d < x.Dv; ++d) out[d] += weight[i] / total * value[d];
        }
        if (x.nan_value >= 0 && !keys.empty() && !std::binary_search(keys.begin(), keys.end(), x.nan_value) &&
            may_share_a_tile(x, documents, t))
          for (int d = 0; d < x.Dv; ++d) out[d] = o.at(b, t, head, d);
        const std::size_t at = (static_cast<std::size_t>(b) * Hq + head) * x.S + t;
        const double got_m = stats[at * 2], got_sum = stats[at * 2 + 1];
        const double error = keys.empty()        ? (got_m == -INFINITY && got_sum == 0 ? 0 : 1e30)
                             : std::isnan(total) ? (std::isnan(got_sum) ? 0 : 1e30)
                                                 : std::abs(got_m - maximum) + std::abs(got_sum / total - 1);
        if (x.size == 1) worst_score = error <= 1e30 ? std::max(worst_score, error) : 1e30;
        if (x.call.forward_alone) continue;
        double own_delta = 0;  // of the rounded o: that is what the gradients are made with
        for (int d = 0; d < x.Dv; ++d) own_delta += o.at(b, t, head, d) * own_dout[d];
        const bool both_nan = std::isnan(delta[at]) && std::isnan(own_delta);
        const double delta_error = both_nan ? 0 : std::abs(delta[at] - own_delta) / (1 + std::abs(own_delta));
        worst_delta = delta_error <= 1e30 ? std::max(worst_delta, delta_error) : 1e30;
        for (std::size_t i = 0; i < keys.size(); ++i) {
          const double *key = key_rows.row(b, keys[i], group), *value = value_rows.row(b, keys[i], group);
          const double p = weight[i] / total;
          double dp = 0;
          for (int d = 0; d < x.Dv; ++d) dp += own_dout[d] * value[d];
          const double ds = p * (dp - own_delta) * f.scale;
          double *to_q = want_dq.row(b, t, head), *to_k = want_dk.row(b, keys[i], group),
                 *to_v = want_dv.row(b, keys[i], group);
          for (int d = 0; d < x.Dk; ++d) {
            to_q[d] += ds * key[d];
            to_k[d] += ds * own_q[d];
          }
          for (int d = 0; d < x.Dv; ++d) to_v[d] += p * own_dout[d];
        }
      }
  if (worst_score > 1e-4) what += "stats are off by " + std::to_string(worst_score) + "; ";
  if (worst_delta > 1e-4) what += "delta is off by " + std::to_string(worst_delta) + "; ";
  const double allowed = x.storage == Storage::bf16 ? 0.02 : 0.0025;
  what += compare("o", o, want_o, x.B, allowed);
  if (!x.call.forward_alone)
    what += compare("dq", dq, want_dq, x.B, allowed) + compare("dk", dk, want_dk, x.B, allowed);
  if (!x.call.forward_alone && x.nan_gradient < 0) what += compare("dv", dv, want_dv, x.B, allowed);
  if (!std::equal(x.ways.begin(), x.ways.end(), static_cast<const int*>(forward_space.at())))  // begins with them
    what += "another way; ";
  if (!forward_space.untouched_behind() || !backward_space.untouched_behind()) what += "a write behind the workspace; ";
  for (int i = 0; i < 8; ++i)
    if (stats[rows * 2 + i] != -7.f || delta[rows + i] != -7.f) what += "a write behind stats or delta; ";
  return what;
}

}  // namespace nsa::kernels
