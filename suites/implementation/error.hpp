// What goes wrong with an implementation that runs in a process of its own.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>

namespace suites::implementation {

// `kind` is one of
//   start, crashed, silent, protocol   of the process: it cannot be started, died, gave no answer in time, or broke the
//                                      rules of the pipes and of the arena. It is gone then.
//   import, description, unsupported, exception, shape, dtype, device, request, cuda, torch
//                                      told by the host; some are also found on this side. It goes on serving.
//   changed_inputs                     the implementation wrote to tensors that it was given.
class ImplementationError : public std::runtime_error {
 public:
  // what(): "KIND: MESSAGE", then the traceback and the last lines of the output, where there are some.
  ImplementationError(std::string kind, std::string message, std::string traceback = "", std::string output = "");

  [[nodiscard]] bool process_is_gone() const;

  std::string kind, message;
  std::string traceback;  // of Python, from the adapter on; "" where there is none
  std::string output;     // what the process wrote last on standard output and error
};

inline constexpr std::size_t kShownBytes = 200;  // of a bad line or value, in a message
// Bytes that may be anything, for messages: ill-formed UTF-8 becomes U+FFFD, what is beyond `most` bytes is left out.
[[nodiscard]] std::string readable(std::string_view bytes, std::size_t most = std::string_view::npos);

}  // namespace suites::implementation
