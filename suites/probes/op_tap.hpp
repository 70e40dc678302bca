// Functions that are called before and after every ATen operation while this object lives (RecordFunction).
#pragma once

#include <ATen/record_function.h>

namespace suites::probes {

struct TapSees {
  bool inputs = false, outputs = false;  // RecordFunction::inputs() and outputs() are filled
  bool nodes = false;                    // the autograd engine's nodes too
};

class OpTap {
 public:
  // They are plain functions: what they write to cannot travel with them. Either may be null.
  using Begin = at::RecordFunctionCallback::StartCallback;
  using End = at::RecordFunctionCallback::EndCallback;
  enum class Of { this_thread, all_threads };  // the backward pass of a GPU runs on a thread of its own

  OpTap(Of threads, Begin begin, End end, const TapSees& sees = {}) {
    at::RecordFunctionCallback callback(begin, end);
    callback.needsInputs(sees.inputs).needsOutputs(sees.outputs).scopes({at::RecordScope::FUNCTION});
    if (sees.nodes) callback.scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION});
    handle_ = threads == Of::all_threads ? at::addGlobalCallback(callback) : at::addThreadLocalCallback(callback);
  }
  ~OpTap() { at::removeCallback(handle_); }
  OpTap(const OpTap&) = delete;
  OpTap& operator=(const OpTap&) = delete;

 private:
  at::CallbackHandle handle_;
};

}  // namespace suites::probes
