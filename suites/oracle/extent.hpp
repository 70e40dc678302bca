// Where and how a value parts from what it should be, in words that a cause can be read from: "in sequence 1 of the
// batch alone", "in rows from 64 on, where it is 0", "everywhere, where it is 0.125 times what it should be".
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace suites::oracle {

// `value` and `wanted` of one shape: [B,rows,heads,components], [B,rows,channels], a weight [rows,columns], or a
// vector. `allowed`: the error of a single value up to which it counts as right. NaN and infinity are right only where
// `wanted` has the same. "" for other shapes and where nothing is off by more.
[[nodiscard]] std::string extent_of_error(const at::Tensor& value, const at::Tensor& wanted, double allowed);

}  // namespace suites::oracle
