// Case streams: every kind of data alone, from the first batch to the last, against the data told a second time: both
// splits, two passes, and a stream that goes on where another one stood. No model; written_down is about the run.
#pragma once

#include <functional>
#include <memory>

#include "harness/context.hpp"
#include "nsa/train/stream.hpp"

namespace suites::training_cases {

using OpenStream = std::function<std::unique_ptr<nsa::train::BatchStream>(const nsa::train::StreamOptions&)>;

// `open`: nsa::train::open_stream; a test puts another one in its place.
void judge_streams(harness::Context& context, const OpenStream& open);

}  // namespace suites::training_cases
