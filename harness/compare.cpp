#include "harness/compare.hpp"

namespace harness {

// Each is true only when the good case holds; a NaN on either side makes every comparison false.
bool at_most(double value, double bound) { return value <= bound; }
bool at_least(double value, double bound) { return value >= bound; }
bool within(double value, double low, double high) { return low <= value && value <= high; }

}  // namespace harness
