// An implementation of Native Sparse Attention in Python, asked from here: its description, its functions, their
// gradients.
//
// It is started when something is first asked of it, and again after it died or fell silent: what broke it is told to
// whoever had asked, once. Its graphs die with it. After three starts in a row that failed nobody tries again.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "suites/implementation/call.hpp"
#include "suites/implementation/connection.hpp"
#include "suites/implementation/description.hpp"
#include "suites/implementation/error.hpp"

namespace suites::implementation {

// The graph of a call, which the process keeps until a backward pass that does not keep it, or release().
struct Graph {
  std::int64_t process = 0;  // which start of it
  std::int64_t number = 0;
  std::string function;
  std::vector<Form> inputs;                          // whose gradients can be asked for
  std::shared_ptr<const Request> request = nullptr;  // the call, without graphs of ours
};

// A call that was made, for whoever wants to make it again. Its tensors are those of the call, not copies.
struct Made {
  std::shared_ptr<const Request> request;
  Named cotangents;                         // of the backward pass; empty: the forward pass alone
  bool answered = false;                    // with what was asked for
  bool wrote = false;                       // to its inputs
  std::vector<std::int64_t> versions = {};  // of the inputs

  [[nodiscard]] bool as_it_was() const;  // nobody has written to the inputs since
};

struct Forward {
  Named outputs;               // each on the CPU or the inputs' GPU; undefined: the function gives none of that name
  std::optional<Graph> graph;  // where gradients were asked for and the outputs have a graph
  std::vector<std::string> changed_inputs;
  double seconds = 0;  // in Python: on a GPU between two events
};
struct Backward {
  Named gradients;  // each on the CPU or the GPU, of Graph::inputs; undefined: none reaches it
  std::vector<std::string> changed_inputs;
  double seconds = 0;
};
struct Memory {
  std::int64_t resident = 0;                   // bytes of the process
  std::optional<std::int64_t> cuda_allocated;  // bytes; none without a GPU
  std::int64_t graphs = 0;                     // that it keeps
};

// Thread-safe: one request at a time. Whatever asks the process throws ImplementationError.
class Client {
 public:
  using Seconds = Connection::Seconds;
  struct Options {
    std::string python = "python3";  // looked for in PATH
    std::filesystem::path host, adapter;
    Seconds start{120};  // until it has imported torch and the adapter, and described itself
    Seconds call{60};    // for one call
    // That tensors of a GPU cross in, where it can be had; none: they are copied through the host's.
    std::optional<DeviceMemory> device_memory = cuda_memory();
  };
  static constexpr int kStarts = 3;  // in a row, then no more

  explicit Client(Options options);

  // What it said when it was first started. The reference stays good.
  [[nodiscard]] const Description& describe();
  // The same as the host gave it; null until then.
  [[nodiscard]] Json described() const;

  // Outputs have the form that nsa/ops.hpp gives them, or it throws "shape" or "dtype".
  [[nodiscard]] Forward forward(const Request& request);
  // `cotangents`: of some outputs, by name. Throws "crashed" when the process that kept the graph is gone.
  [[nodiscard]] Backward backward(const Graph& graph, const Named& cotangents, bool keep);
  // Told with the next request, so that it waits for nobody: graphs are dropped where nobody expects a wait.
  void release(const Graph& graph) noexcept;

  [[nodiscard]] Memory memory();
  void seed(std::int64_t seed);  // of torch in the process that runs now
  void end();                    // kills the process and its group; whatever is asked next starts another

  // The last forward or backward pass that was asked for since the start or forget(), whatever became of it.
  [[nodiscard]] std::optional<Made> last_call() const;
  void forget();
  // Lets the process write FOLDER/inputs.pt and FOLDER/repro.py, which makes the call again without us and compares it
  // with `expected`: outputs and "gradient of NAME". `title` stands at its head. In the place of a process that turns
  // out to be gone another one is started.
  void save(const Made& call, const Named& expected, const std::filesystem::path& folder, const std::string& title);

  [[nodiscard]] std::map<std::string, std::int64_t> calls() const;  // forward passes that came back, by function
  // Called every second while an answer is waited for, also by processes that are started later. Not to be changed
  // while another thread asks something.
  void on_wait(std::function<void()> call);

  // Called with what is asked, in words, and the process that is asked, and with "" when that has come to an end. Not
  // to be changed while another thread asks something.
  void on_ask(std::function<void(const std::string& what, pid_t process)> call);

  [[nodiscard]] double seconds() const;  // in Python, of all forward passes (on a GPU between two events)
  // Connection::transport() of the process that runs, or of the last one.
  [[nodiscard]] std::string transport() const;
  [[nodiscard]] std::int64_t starts() const;

 private:
  Connection& connection();
  void start();
  void describe_itself();
  [[noreturn]] void give_up(const ImplementationError& error);  // of this process; throws it on
  void send_releases(Connection& to);
  void require_alive(const Graph& graph) const;
  [[nodiscard]] std::optional<Graph> graph_of(const Fields& answer, const std::shared_ptr<const Request>& request);
  void remember(const std::shared_ptr<const Request>& request, const Named& cotangents);
  template <typename Ask>
  auto serve(const std::string& what, const Ask& ask, const Graph* needed = nullptr);
  class Asking;

  const Options options_;
  mutable std::mutex mutex_;
  std::unique_ptr<Connection> connection_;
  std::optional<Description> description_;
  Json described_;                           // as it came
  std::optional<ImplementationError> why_;   // the last process ended, or could not be started
  std::string transport_ = "shared memory";  // of the process before
  int failed_starts_ = 0;                    // in a row
  std::int64_t starts_ = 0;
  std::map<std::string, std::int64_t> calls_;
  double seconds_ = 0;
  std::optional<Made> last_;
  std::function<void()> waiting_;
  std::function<void(const std::string&, pid_t)> asking_;

  std::mutex released_mutex_;
  std::vector<Graph> released_;
};

}  // namespace suites::implementation
