// Every comparison with a bound in the project goes through here, so that NaN can never pass: each is written as
// "not (good)", and the truth table in tests/compare_test.cpp includes NaN and the infinities on either side.
#pragma once

namespace harness {

[[nodiscard]] bool at_most(double value, double bound);   // value <= bound, false for NaN on either side
[[nodiscard]] bool at_least(double value, double bound);  // value >= bound
[[nodiscard]] bool within(double value, double low, double high);

}  // namespace harness
