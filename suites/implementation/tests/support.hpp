// Python programs that speak the protocol by hand, with the standard library alone.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "suites/implementation/device_arena.hpp"
#include "suites/implementation/error.hpp"

namespace suites::implementation::tests {

inline constexpr const char* kPython = "python3";

// Before every program:
//   request() -> dict; the end of the pipe ends the program
//   say(text): as it is, to the pipe of answers
//   ok(request, **fields), error(request, kind, message, type="", traceback="")
//   get(place) -> list of numbers; put(list, dtype, shape) -> place, laid out from `room` on (set it from a request)
//   arena_size()
extern const char* const kProtocol;

// After kProtocol: a whole host that computes in Python, slowly, in fp64 (fp32 for lse):
//   compress: means. select: block 0. attend_*: o = 3 v, lse = sum of q (base 2 where DESCRIPTION says so).
//   combine: as it must be. attend: o = 2 v_sel + v_win. attention: o = v times the first gate. Gradients of o by v, of
//   combine by everything, of compress by k and v; null by the rest.
// DESCRIPTION and the functions of FUNCTIONS can be changed before serve().
extern const char* const kHost;

// Skips where there is no Python. A folder for programs, deleted afterwards.
class PythonTest : public testing::Test {
 protected:
  PythonTest();
  ~PythonTest() override;
  void SetUp() override;

  // kProtocol and `body`, as a file.
  [[nodiscard]] std::filesystem::path program(const std::string& body) const;
  // kProtocol, kHost, `changes`, serve().
  [[nodiscard]] std::filesystem::path host(const std::string& changes = "") const;

  std::filesystem::path folder;
  std::filesystem::path adapter;  // a name; no program here reads it
};

// Memory for the tensors of the CPU in the place of a GPU's: files in `folder`. The "handle" is a file's name in hex,
// with zeros up to 64 bytes, as adapters/tests/file_host.py takes it.
// `alive` counts those that are not freed yet, `waits` the calls of wait().
struct FileMemory {
  std::filesystem::path folder;
  std::shared_ptr<int> alive = std::make_shared<int>(0), made = std::make_shared<int>(0),
                       waits = std::make_shared<int>(0);
  [[nodiscard]] DeviceMemory memory() const;
};

// What `call` throws; of kind "nothing" when it throws nothing.
[[nodiscard]] ImplementationError error_of(const std::function<void()>& call);

// Whether somebody else's child is gone, or waits to be collected, at most some seconds later.
[[nodiscard]] bool is_gone(int pid);

}  // namespace suites::implementation::tests
