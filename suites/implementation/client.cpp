#include "suites/implementation/client.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace suites::implementation {

namespace {

// The request, with its inputs where the process finds them.
Json body_of(const Request& request, Connection& to) {
  Json body = to_json(request);
  body["inputs"] = to.share(request.inputs, body, outputs_of(request));
  return body;
}

// What is remembered must not keep a graph of ours alive.
Named without_graphs(Named tensors) {
  for (auto& [name, tensor] : tensors)
    if (tensor.defined()) tensor = tensor.detach();
  return tensors;
}

std::vector<std::int64_t> versions_of(const Named& tensors) {
  std::vector<std::int64_t> versions;
  for (const auto& [name, tensor] : tensors)
    versions.push_back(tensor.defined() && !tensor.is_inference() ? tensor._version() : 0);  // those count no writes
  return versions;
}

// The tensors of a request by the part of it that they belong to: "inputs.q" goes to body["inputs"]["q"].
void add_parts(Json& body, const Json& places, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    body[part] = Json::object();
    for (const auto& [name, place] : places.items())
      if (name.starts_with(part + ".")) body[part][name.substr(part.size() + 1)] = place;
  }
}

}  // namespace

bool Made::as_it_was() const { return versions_of(request->inputs) == versions; }

Client::Client(Options options) : options_(std::move(options)) {}

// While it lives, something is asked of the process.
class Client::Asking {
 public:
  Asking(const Client& client, const std::string& what) : client_(client) {
    if (client_.asking_) client_.asking_(what, client_.connection_->pid());
  }
  ~Asking() {
    if (client_.asking_) client_.asking_("", 0);
  }
  Asking(const Asking&) = delete;
  Asking& operator=(const Asking&) = delete;

 private:
  const Client& client_;
};

// With the process that runs, or a new one, which would not have the graph that is needed. One that broke, or whose GPU
// did, is of no use to the next call.
template <typename Ask>
auto Client::serve(const std::string& what, const Ask& ask, const Graph* needed) {
  const std::lock_guard lock(mutex_);
  if (needed != nullptr) require_alive(*needed);
  Connection& to = connection();
  try {
    const Asking asking(*this, what);
    send_releases(to);
    return ask(to);
  } catch (const ImplementationError& error) {
    if (!error.process_is_gone() && error.kind != "cuda") throw;
    give_up(error);
  }
}

Connection& Client::connection() {
  if (connection_) return *connection_;
  if (failed_starts_ >= kStarts) {
    const std::string message = fmt::format("{} (given up after {} starts)", why_->message, kStarts);
    throw ImplementationError(why_->kind, message, why_->traceback, why_->output);
  }
  start();
  return *connection_;
}

void Client::start() {
  ++failed_starts_;  // until it has described itself
  ++starts_;
  try {
    connection_ =
        std::make_unique<Connection>(options_.python, options_.host, options_.adapter, options_.device_memory);
    connection_->on_wait(waiting_);
    const Asking asking(*this, "the start and describe()");
    describe_itself();
  } catch (const ImplementationError& error) {
    give_up(error);
  } catch (const std::exception& error) {  // no memory for an arena
    give_up({"start", error.what()});
  }
  failed_starts_ = 0;
}

void Client::give_up(const ImplementationError& error) {
  std::string output = error.output;
  if (connection_) {
    transport_ = connection_->transport();
    connection_->end();
    output = connection_->last_words();
  }
  connection_.reset();
  why_.emplace(error.kind, error.message, error.traceback, output);
  throw ImplementationError(*why_);
}

void Client::describe_itself() {
  const Json answer = connection_->ask("describe", Json::object(), options_.start);
  Description description = description_from(answer);
  if (!description_) {
    description_ = std::move(description);
    described_ = answer["description"];
  } else if (const Json differ = differences(described_, answer["description"]); !differ.empty()) {
    throw ImplementationError("description", fmt::format("{} describes itself otherwise than before: {}",
                                                         description.file, words_of(differ)));
  }
}

const Description& Client::describe() {
  const std::lock_guard lock(mutex_);
  if (!description_) (void)connection();
  return *description_;
}

Json Client::described() const {
  const std::lock_guard lock(mutex_);
  return described_;
}

Forward Client::forward(const Request& request) {
  auto copy = std::make_shared<Request>(request);
  copy->inputs = without_graphs(std::move(copy->inputs));
  const std::shared_ptr<const Request> asked = std::move(copy);
  return serve(request.function, [&](Connection& to) {
    remember(asked, {});
    const Json answer = to.ask("forward", body_of(request, to), options_.call);
    const Fields fields(answer, "answer to " + request.function);
    Forward forward{to.take(fields, "outputs"), graph_of(fields, asked), fields.texts("changed_inputs"),
                    fields.number("seconds")};
    try {
      check_forms(request.function, forward.outputs, outputs_of(request));
    } catch (...) {
      if (forward.graph) release(*forward.graph);
      throw;
    }
    ++calls_[request.function];
    seconds_ += forward.seconds;
    last_->answered = true;
    last_->wrote = !forward.changed_inputs.empty();
    return forward;
  });
}

// A graph is kept for every call that asked for gradients; one that leads nowhere is given back at once.
std::optional<Graph> Client::graph_of(const Fields& answer, const std::shared_ptr<const Request>& request) {
  if (request->gradients.empty()) return std::nullopt;
  Graph graph{starts_, answer.integer("call"), request->function, {}, request};
  for (const std::string& name : request->gradients)
    graph.inputs.push_back(form_of(name, named(request->inputs, name)));
  if (answer.truth("requires_grad")) return graph;
  release(graph);
  return std::nullopt;
}

Backward Client::backward(const Graph& graph, const Named& cotangents, bool keep) {
  const auto ask = [&](Connection& to) {
    remember(graph.request, cotangents);
    Json body = {{"call", graph.number}, {"keep", keep}};
    body["cotangents"] = to.share(cotangents, body, graph.inputs);
    const Json answer = to.ask("backward", body, options_.call);
    const Fields fields(answer, "answer to the backward pass of " + graph.function);
    Backward backward{to.take(fields, "gradients"), fields.texts("changed_inputs"), fields.number("seconds")};
    check_forms("the gradients of " + graph.function, backward.gradients, graph.inputs);
    last_->answered = true;
    last_->wrote = !backward.changed_inputs.empty();
    return backward;
  };
  return serve("the backward pass of " + graph.function, ask, &graph);
}

void Client::require_alive(const Graph& graph) const {
  if (connection_ && graph.process == starts_) return;
  throw ImplementationError("crashed",
                            fmt::format("the graph of {} is gone with the process that kept it{}", graph.function,
                                        why_ ? fmt::format(" ({}: {})", why_->kind, why_->message) : std::string()));
}

void Client::release(const Graph& graph) noexcept try {
  const std::lock_guard lock(released_mutex_);
  released_.push_back({graph.process, graph.number, {}, {}});
} catch (const std::exception&) {  // no memory for a note: the graph stays until the process ends
}

void Client::send_releases(Connection& to) {
  std::vector<Graph> graphs;
  {
    const std::lock_guard lock(released_mutex_);
    graphs.swap(released_);
  }
  for (const Graph& graph : graphs) {
    if (graph.process != starts_) continue;
    try {
      (void)to.ask("release", {{"call", graph.number}}, options_.call);
    } catch (const ImplementationError& error) {
      if (error.process_is_gone()) throw;  // else a backward pass that failed has taken its graph with it
    }
  }
}

Memory Client::memory() {
  return serve("the memory", [&](Connection& to) {
    const Json answer = to.ask("memory", Json::object(), options_.call);
    const Fields fields(answer, "answer to memory");
    Memory memory{fields.integer("resident"), std::nullopt, fields.integer("graphs")};
    if (fields.has("cuda_allocated")) memory.cuda_allocated = fields.integer("cuda_allocated");
    return memory;
  });
}

void Client::seed(std::int64_t seed) {
  serve("the seed", [&](Connection& to) { (void)to.ask("seed", {{"seed", seed}}, options_.call); });
}

void Client::remember(const std::shared_ptr<const Request>& request, const Named& cotangents) {
  last_ = Made{request, without_graphs(cotangents), false, false, versions_of(request->inputs)};
}

std::optional<Made> Client::last_call() const {
  const std::lock_guard lock(mutex_);
  return last_;
}

void Client::forget() {
  const std::lock_guard lock(mutex_);
  last_.reset();
}

void Client::save(const Made& call, const Named& expected, const std::filesystem::path& folder,
                  const std::string& title) {
  Named tensors;
  const auto add = [&](const std::string& part, const Named& more) {
    for (const auto& [name, tensor] : more)
      if (tensor.defined()) tensors.emplace_back(part + "." + name, tensor);
  };
  add("inputs", call.request->inputs);
  add("cotangents", call.cotangents);
  add("expected", expected);
  const auto ask = [&](Connection& to) {
    Json body = to_json(*call.request);
    body.update({{"folder", folder.string()}, {"title", title}, {"wrote", call.wrote}});
    const Json places = to.put(tensors, body);
    add_parts(body, places, {"inputs", "cotangents", "expected"});
    (void)to.ask("save", body, options_.call);
  };
  const std::string what = "a script that repeats a call";
  try {
    serve(what, ask);
  } catch (const ImplementationError& error) {
    if (!error.process_is_gone()) throw;
    serve(what, ask);  // by another one
  }
}

void Client::end() {
  const std::lock_guard lock(mutex_);
  connection_.reset();
}

std::map<std::string, std::int64_t> Client::calls() const {
  const std::lock_guard lock(mutex_);
  return calls_;
}

void Client::on_wait(std::function<void()> call) {
  const std::lock_guard lock(mutex_);
  waiting_ = std::move(call);
  if (connection_) connection_->on_wait(waiting_);
}

void Client::on_ask(std::function<void(const std::string&, pid_t)> call) {
  const std::lock_guard lock(mutex_);
  asking_ = std::move(call);
}

double Client::seconds() const {
  const std::lock_guard lock(mutex_);
  return seconds_;
}

std::string Client::transport() const {
  const std::lock_guard lock(mutex_);
  return connection_ ? connection_->transport() : transport_;
}

std::int64_t Client::starts() const {
  const std::lock_guard lock(mutex_);
  return starts_;
}

}  // namespace suites::implementation
