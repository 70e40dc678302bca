// For the tests of the emulation: kernels that run in several orders of their threads, and what is seen in all of them.
// Compiled as the kernels are.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <source_location>
#include <string>
#include <vector>

#include "nsa/kernels/tests/emulation/cuda.hpp"
#include "nsa/kernels/tests/emulation/emulator.hpp"

namespace nsa::kernels::emulation {

// What launches of a kernel end with, in several orders: an error's text, or "".
inline std::vector<std::string> outcomes(int threads, const std::function<void()>& kernel, unsigned blocks = 1,
                                         const std::source_location& at = std::source_location::current()) {
  std::vector<std::string> all;
  for (int order = 0; order < 10; ++order) {
    set_order(order);
    try {
      launch(nullptr, Grid(dim3(blocks), static_cast<unsigned>(threads), 20 << 10, nullptr, at), kernel);
      all.emplace_back();
    } catch (const Error& error) {
      all.emplace_back(error.what());
    }
  }
  return all;
}
inline testing::AssertionResult silent(const std::vector<std::string>& all) {
  for (const std::string& text : all)
    if (!text.empty()) return testing::AssertionFailure() << text;
  return testing::AssertionSuccess();
}
// In every order.
inline testing::AssertionResult seen(const std::vector<std::string>& all, const std::string& what = "a race") {
  for (const std::string& text : all)
    if (text.find(what) == std::string::npos) return testing::AssertionFailure() << "\"" << text << "\"";
  return testing::AssertionSuccess();
}

inline int* words() { return static_cast<int*>(shared()); }
inline int own() { return static_cast<int>(threadIdx.x); }

}  // namespace nsa::kernels::emulation
