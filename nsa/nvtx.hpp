// A named NVTX range for as long as the object lives; nothing when switched off.
#pragma once

#include <nvtx3/nvToolsExt.h>

namespace nsa {

class NvtxRange {
 public:
  NvtxRange(bool on, const char* name) : on_(on) {
    if (on_) nvtxRangePushA(name);
  }
  ~NvtxRange() {
    if (on_) nvtxRangePop();
  }
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;

 private:
  bool on_;
};

}  // namespace nsa
