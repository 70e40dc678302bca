// AdamW over many tensors, emulated (nsa/kernels/tests/emulation), against the formula in fp64.
#include "nsa/kernels/update.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>

#include "nsa/kernels/tests/emulation/emulator.hpp"
#include "nsa/kernels/tests/tensors.hpp"

namespace nsa::kernels {
namespace {

constexpr float kUntouched = 77;

// fp32 numbers with others around them.
class Floats {
 public:
  Floats(std::int64_t size, int shift) : size_(size), first_(kAround) {
    data_.assign(static_cast<std::size_t>(size + 2 * kAround + 8), kUntouched);
    while (reinterpret_cast<std::uintptr_t>(&data_[first_]) % 16 != 0) ++first_;
    first_ += static_cast<std::size_t>(shift);
  }
  float* data() { return &data_[first_]; }
  float& operator[](std::int64_t i) { return data_[first_ + static_cast<std::size_t>(i)]; }
  float operator[](std::int64_t i) const { return data_[first_ + static_cast<std::size_t>(i)]; }
  [[nodiscard]] bool same_bits(const Floats& x) const {
    return std::memcmp(data_.data(), x.data_.data(), data_.size() * sizeof(float)) == 0;
  }
  [[nodiscard]] bool surroundings_are_untouched() const {
    for (std::size_t i = 0; i < data_.size(); ++i)
      if ((i < first_ || i >= first_ + static_cast<std::size_t>(size_)) && data_[i] != kUntouched) return false;
    return true;
  }

 private:
  static constexpr std::size_t kAround = 64;
  std::int64_t size_;
  std::size_t first_;
  std::vector<float> data_;
};

// One tensor with its state, and what it was before.
struct Updated {
  Storage storage;
  std::int64_t size;
  Tensor parameter, gradient;
  std::vector<double> given;  // the gradient
  Floats weight, first, second, weight_before, first_before, second_before;
  float step;

  Updated(Storage type, std::int64_t elements, int shift, float count, std::mt19937& random)
      : storage(type),
        size(elements),
        parameter(type, 1, 1, 1, static_cast<int>(size) + shift),
        gradient(type, 1, 1, 1, static_cast<int>(size) + shift),
        weight(size, shift),
        first(size, shift),
        second(size, shift),
        weight_before(size, shift),
        first_before(size, shift),
        second_before(size, shift),
        step(count) {
    std::normal_distribution<float> normal;
    parameter.fill(random, 1);
    gradient.fill(random, 1);
    for (std::int64_t i = 0; i < size; ++i) {
      weight[i] = weight_before[i] = normal(random);
      first[i] = first_before[i] = normal(random);
      second[i] = second_before[i] = std::abs(normal(random));
      given.push_back(gradient.at(0, 0, 0, static_cast<int>(i) + shift));
    }
    shift_ = shift;
  }
  [[nodiscard]] UpdatedTensor tensor() {
    const auto at = [&](const Tensor& t) { return static_cast<std::uint16_t*>(t.rows().data) + shift_; };
    return {at(parameter), at(gradient), weight.data(), first.data(), second.data(), &step, size};
  }
  [[nodiscard]] double parameter_at(std::int64_t i) const {
    return parameter.at(0, 0, 0, static_cast<int>(i) + shift_);
  }
  [[nodiscard]] double gradient_at(std::int64_t i) const { return gradient.at(0, 0, 0, static_cast<int>(i) + shift_); }
  void set_gradient(std::int64_t i, double x) {
    gradient.set(0, 0, 0, static_cast<int>(i) + shift_, x);
    given[static_cast<std::size_t>(i)] = x;
  }

 private:
  int shift_;
};

struct UpdateProblem {
  std::vector<std::unique_ptr<Updated>> tensors;
  Update p;

  UpdateProblem(Storage storage, const std::vector<std::int64_t>& sizes, int shift = 0) {
    std::mt19937 random(5);
    for (std::size_t i = 0; i < sizes.size(); ++i)
      tensors.push_back(std::make_unique<Updated>(storage, sizes[i], shift, static_cast<float>(1 + 3 * i), random));
    p.storage = storage;
    p.rate = 0.01;
    p.decay = 0.1;
    p.max_norm = 1;
    p.norm = 0.5;
  }
  void run() {
    std::vector<UpdatedTensor> all;
    for (const auto& t : tensors) all.push_back(t->tensor());
    update(all, p, nullptr);
  }
  // What differs from the formula by more than fp32 loses; NaN does. Empty where all is well.
  [[nodiscard]] std::string wrong(double factor = 1) const {
    std::string found;
    for (std::size_t k = 0; k < tensors.size(); ++k) {
      const Updated& t = *tensors[k];
      const auto compare = [&](const char* name, std::int64_t i, double got, double want, double more = 0) {
        if (found.empty() && !(std::abs(got - want) <= 1e-6 + 3e-6 * std::abs(want) + more))
          found = std::string(name) + "[" + std::to_string(k) + "][" + std::to_string(i) + "] is " +
                  std::to_string(got) + ", wanted " + std::to_string(want);
      };
      for (std::int64_t i = 0; i < t.size; ++i) {
        const double raw = t.given[static_cast<std::size_t>(i)];
        const double g = factor == 1 ? raw : value_of(t.storage, bits_of(t.storage, raw * static_cast<float>(factor)));
        compare("gradient", i, t.gradient_at(i), g);
        const double m = p.beta1 * t.first_before[i] + (1 - p.beta1) * g;
        const double v = p.beta2 * t.second_before[i] + (1 - p.beta2) * g * g;
        compare("first", i, t.first[i], m);
        compare("second", i, t.second[i], v);
        const double rate = p.rate / (1 - std::pow(p.beta1, t.step)), root = std::sqrt(1 - std::pow(p.beta2, t.step));
        const double kept = t.weight_before[i] * (1 - p.rate * p.decay);
        const double change = rate * m / (std::sqrt(v) / root + p.epsilon);
        // 1 - beta2^step has what rounding beta2 and its power to fp32 leaves of 0.001 a step: up to 6e-5 of its root.
        compare("weight", i, t.weight[i], kept - change, 1e-4 * std::abs(change));
        if (found.empty() && bits_of(t.storage, t.parameter_at(i)) != bits_of(t.storage, t.weight[i]))
          found = "a parameter is not its weight, rounded";
      }
      for (const Tensor* x : {&t.parameter, &t.gradient})
        if (!x->surroundings_are_untouched()) found += " something else was written";
      for (const Floats* x : {&t.weight, &t.first, &t.second})
        if (!x->surroundings_are_untouched()) found += " something else was written";
    }
    return found;
  }
  [[nodiscard]] bool same_bits(const UpdateProblem& x) const {
    for (std::size_t k = 0; k < tensors.size(); ++k) {
      const Updated &a = *tensors[k], &b = *x.tensors[k];
      if (!(a.parameter.same_bits(b.parameter) && a.gradient.same_bits(b.gradient) && a.weight.same_bits(b.weight) &&
            a.first.same_bits(b.first) && a.second.same_bits(b.second)))
        return false;
    }
    return true;
  }
};

// Whole and broken eights, chunks (8192) and lists (64 tensors); nothing at all.
TEST(EmulatedUpdate, Sizes) {
  const std::vector<std::int64_t> sizes = {1, 7, 8, 0, 9, 2047, 2048, 2056, 8191, 8192, 8193, 16390};
  for (const auto storage : {Storage::bf16, Storage::fp16}) {
    UpdateProblem p(storage, sizes);
    p.run();
    EXPECT_EQ(p.wrong(), "");
  }
  UpdateProblem nothing(Storage::bf16, {});
  nothing.run();
}

TEST(EmulatedUpdate, ManyTensorsTakeSeveralLists) {
  for (const int count : {63, 64, 65, 130}) {
    std::vector<std::int64_t> sizes;
    for (int i = 0; i < count; ++i) sizes.push_back(1 + (i * 37) % 90);
    sizes[3] = 8200;
    UpdateProblem p(Storage::bf16, sizes);
    (void)emulation::take_launched();
    p.run();
    EXPECT_EQ(p.wrong(), "") << count;
    EXPECT_EQ(emulation::take_launched().kernels, (count + 63) / 64);
  }
}

TEST(EmulatedUpdate, TensorsMayLieAnywhere) {
  const std::vector<std::int64_t> sizes = {1, 64, 65, 8200};
  for (const int shift : {1, 3, 4}) {
    UpdateProblem p(Storage::bf16, sizes, shift);
    p.run();
    EXPECT_EQ(p.wrong(), "") << shift;
  }
}

TEST(EmulatedUpdate, AGradientThatIsTooLongIsScaledAndRoundedAsItIsStored) {
  for (const auto storage : {Storage::bf16, Storage::fp16})
    for (const int shift : {0, 1}) {
      UpdateProblem p(storage, {70, 8200}, shift);
      p.p.norm = 3;
      p.p.max_norm = 0.7;
      p.run();
      EXPECT_EQ(p.wrong(0.7 / 3), "");
      EXPECT_NE(p.wrong(), "");  // the comparison says no
    }
}

// Numbers on the device are the same as on the host; where the norm is no number nothing is scaled.
TEST(EmulatedUpdate, NumbersOfTheDevice) {
  const float rate = 0.01F, norm = 3;
  UpdateProblem host(Storage::bf16, {70, 8200}), device(Storage::bf16, {70, 8200});
  host.p.rate = rate, host.p.norm = norm;
  device.p.rate = 55, device.p.norm = 0;
  device.p.rate_there = &rate, device.p.norm_there = &norm;
  host.run();
  device.run();
  EXPECT_TRUE(device.same_bits(host));
  EXPECT_EQ(host.wrong(1.0 / 3), "");
  for (const float bad : {NAN, INFINITY, 1.F}) {
    UpdateProblem p(Storage::bf16, {70});
    p.p.norm_there = &bad;
    p.run();
    EXPECT_EQ(p.wrong(), "") << bad;
  }
}

TEST(EmulatedUpdate, WhatIsSkippedKeepsEveryBit) {
  const float yes = 1, no = 0;
  UpdateProblem before(Storage::bf16, {9, 8200}), p(Storage::bf16, {9, 8200});
  p.p.norm = before.p.norm = 3;
  p.tensors[0]->set_gradient(2, NAN);
  before.tensors[0]->set_gradient(2, NAN);
  p.p.skip = &yes;
  p.run();
  EXPECT_TRUE(p.same_bits(before));
  p.p.skip = &no;
  p.run();
  EXPECT_FALSE(p.same_bits(before));
}

TEST(EmulatedUpdate, ANaNStaysWhereItIs) {
  UpdateProblem clean(Storage::bf16, {70}), p(Storage::bf16, {70});
  p.tensors[0]->set_gradient(5, NAN);
  clean.run();
  p.run();
  for (std::int64_t i = 0; i < 70; ++i) {
    const Updated &a = *p.tensors[0], &b = *clean.tensors[0];
    for (const double x : {a.parameter_at(i), double{a.weight[i]}, double{a.first[i]}, double{a.second[i]}})
      EXPECT_EQ(std::isnan(x), i == 5) << i;
    if (i == 5) continue;
    EXPECT_EQ(a.weight[i], b.weight[i]);
  }
}

// ---- the norm

struct NormOf {
  Storage storage;
  int shift;
  std::vector<std::int64_t> sizes;
  std::vector<std::unique_ptr<Tensor>> tensors;

  NormOf(Storage type, std::vector<std::int64_t> elements, int offset = 0)
      : storage(type), shift(offset), sizes(std::move(elements)) {
    std::mt19937 random(5);
    for (const std::int64_t size : sizes) {
      tensors.push_back(std::make_unique<Tensor>(type, 1, 1, 1, static_cast<int>(size) + shift));
      tensors.back()->fill(random, 3);
    }
  }
  [[nodiscard]] float run() const {
    std::vector<StoredTensor> all;
    for (std::size_t i = 0; i < sizes.size(); ++i)
      all.push_back({static_cast<const std::uint16_t*>(tensors[i]->rows().data) + shift, sizes[i]});
    std::vector<float> parts(static_cast<std::size_t>(norm_parts(all)), NAN);
    float norm = NAN;
    norm_of(all, storage, parts.data(), &norm, nullptr);
    return norm;
  }
  [[nodiscard]] double wanted() const {
    double sum = 0;
    for (std::size_t k = 0; k < sizes.size(); ++k)
      for (int i = 0; i < sizes[k]; ++i) sum += std::pow(tensors[k]->at(0, 0, 0, i + shift), 2);
    return std::sqrt(sum);
  }
};

TEST(EmulatedNormOf, IsTheSumsRoot) {
  const std::vector<std::int64_t> sizes = {1, 7, 8, 0, 9, 2047, 8191, 8192, 8193, 16390};
  for (const auto storage : {Storage::bf16, Storage::fp16})
    for (const int shift : {0, 1, 4}) {
      const NormOf p(storage, sizes, shift);
      EXPECT_NEAR(p.run() / p.wanted(), 1, 1e-6) << shift;
    }
  EXPECT_EQ(NormOf(Storage::bf16, {}).run(), 0);
}

TEST(EmulatedNormOf, ManyTensorsTakeSeveralLists) {
  for (const int count : {127, 128, 129, 300}) {
    std::vector<std::int64_t> sizes;
    for (int i = 0; i < count; ++i) sizes.push_back(1 + (i * 37) % 90);
    sizes[3] = 8200;
    const NormOf p(Storage::bf16, sizes);
    EXPECT_NEAR(p.run() / p.wanted(), 1, 1e-6) << count;
  }
}

TEST(EmulatedNormOf, WhatIsNotFiniteStays) {
  for (const double bad : {double{NAN}, double{INFINITY}}) {
    const NormOf p(Storage::bf16, {70, 8200});
    p.tensors[1]->set(0, 0, 0, 8199, bad);
    EXPECT_FALSE(std::isfinite(p.run()));
  }
}

TEST(EmulatedNormOf, TheOrderOfThreadsAndCtasChangesNoBit) {
  const NormOf p(Storage::bf16, {70, 16390});
  const float first = p.run();
  emulation::set_order(7);
  EXPECT_EQ(p.run(), first);
}

TEST(EmulatedUpdate, TheOrderOfThreadsAndCtasChangesNoBit) {
  UpdateProblem first(Storage::bf16, {70, 16390}), again(Storage::bf16, {70, 16390});
  first.p.norm = again.p.norm = 3;
  first.run();
  emulation::set_order(7);
  again.run();
  EXPECT_TRUE(again.same_bits(first));
}

}  // namespace
}  // namespace nsa::kernels
