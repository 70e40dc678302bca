#include "suites/implementation/connection.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "suites/implementation/error.hpp"

namespace suites::implementation {

namespace {

constexpr Connection::Seconds kTimeToOpen{120};  // memory of a GPU, which may have to be woken first

// Of a tensor of that form, in the widest of its types.
std::int64_t most_bytes(const Form& form) {
  std::int64_t numel = 1, width = 0;
  for (const std::int64_t size : form.sizes) numel *= size;
  for (const at::ScalarType dtype : form.dtypes)
    width = std::max(width, static_cast<std::int64_t>(c10::elementSize(dtype)));
  return numel * width;
}

}  // namespace

Connection::Connection(const std::string& python, const std::filesystem::path& host,
                       const std::filesystem::path& adapter, std::optional<DeviceMemory> shared)
    : process_({python, host, adapter, arena_.fd()}) {
  if (shared) device_arena_.emplace(std::move(*shared));
}

void Connection::end() {
  process_.end();
  if (device_arena_) device_arena_->release();
}

Json Connection::ask(const char* what, const Json& body, Seconds patience) {
  Json request = {{"id", ++last_id_}, {"do", what}};
  request.update(body);
  const std::string line = process_.exchange(reports::dump(request), patience);
  const Json answer = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!answer.is_object()) broken(fmt::format("no JSON object in answer to {}: {}", what, readable(line, kShownBytes)));
  if (!answer.contains("id") || answer["id"] != last_id_)
    broken(fmt::format("the answer to {} has another id than {}: {}", what, last_id_, readable(line, kShownBytes)));
  if (answer.contains("error")) tell(answer["error"]);
  if (!answer.contains("ok"))
    broken(fmt::format("neither ok nor error in answer to {}: {}", what, readable(line, kShownBytes)));
  return answer["ok"];
}

void Connection::broken(const std::string& message) {
  end();
  throw ImplementationError("protocol", message, "", last_words());
}

void Connection::tell(const Json& error) {
  std::string kind, message, traceback;
  try {
    const Fields told(error, "an error of the host");
    kind = told.text("kind");
    message = told.text("message");
    if (told.has("type") && !told.text("type").empty()) message = fmt::format("{}: {}", told.text("type"), message);
    if (told.has("traceback")) traceback = told.text("traceback");
  } catch (const ImplementationError& wrong) {
    broken(wrong.message);
  }
  throw ImplementationError(kind, message, traceback, last_words());
}

Json Connection::put(const Named& tensors, Json& body) { return put_into(false, tensors, body); }

Json Connection::share(const Named& tensors, Json& body, const std::vector<Form>& answers) {
  return put_into(reserve(tensors, answers), tensors, body);
}

// Whether the tensors go into a device's memory; there is room for them then, and the other side has it open.
bool Connection::reserve(const Named& tensors, const std::vector<Form>& answers) {
  const auto is_there = [](const auto& named) { return named.second.defined(); };  // put() says which is not
  if (tensors.empty() || !std::all_of(tensors.begin(), tensors.end(), is_there)) return false;
  const at::Device device = tensors.front().second.device();
  if (!device_arena_ && device.is_cuda()) why_copied_ = "nothing else was asked for";
  if (!device_arena_ || device.type() != device_arena_->type() || !why_copied_.empty()) return false;
  constexpr std::int64_t kStep = DeviceArena::kStep;
  std::int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) bytes += rounded_up(static_cast<std::int64_t>(tensor.nbytes()), kStep);
  for (const Form& form : answers) bytes += rounded_up(most_bytes(form), kStep);
  bool is_new = false;
  try {
    is_new = device_arena_->reserve(device, bytes);
  } catch (const std::runtime_error& error) {  // what was there before stays: the other side has it open
    why_copied_ = error.what();
  }
  if (is_new) why_copied_ = open_there(device);
  return why_copied_.empty();
}

// Why the other process does not share the new memory, in words; "": it does. It has closed what it had open before in
// either case. A few numbers go there and come back as others, so that nobody has to believe it.
std::string Connection::open_there(at::Device device) {
  const at::Tensor probe = at::arange(64, at::TensorOptions(at::kInt).device(device)) + process_.pid() + last_id_;
  Json body = {{"memory", device_arena_->opened_by()}};
  body["probe"] = put_into(true, {{"probe", probe}}, body)["probe"];
  std::string why;
  try {
    const Json answer = ask("share", body, kTimeToOpen);
    const Fields fields(answer, "answer to share");
    if (!fields.truth("shared"))
      why = fields.text("why");
    else if (!at::equal(named(take(fields, "outputs"), "probe").cpu(), probe.cpu() + 1))
      why = "what one process writes there the other does not read";
  } catch (const ImplementationError& error) {
    if (error.process_is_gone()) throw;
    why = error.message;
  }
  device_arena_->forget_old();
  shared_ = why.empty();
  if (!shared_) device_arena_->release();
  return why;
}

Json Connection::put_into(bool device, const Named& tensors, Json& body) {
  arena_.reset();
  if (device) device_arena_->reset();
  Json places = Json::object();
  for (const auto& [name, tensor] : tensors)
    places[name] = to_json(device ? device_arena_->put(tensor) : arena_.put(tensor));
  body["arena"] = arena_.size();
  body["room"] = arena_.room();
  if (!device) return places;
  device_arena_->wait();
  body["device_room"] = device_arena_->room();
  return places;
}

Named Connection::take(const Fields& answer, const char* key) {
  arena_.follow(answer.integer("arena"));
  Named tensors;
  bool any_on_device = false;
  const auto taken = [&](const Place& place) {
    if (!place.on_device) return arena_.take(place);
    any_on_device = true;
    if (!device_arena_ || device_arena_->size() == 0)
      throw ImplementationError("protocol", "a tensor lies in memory of a GPU, and none is shared");
    return device_arena_->take(place);
  };
  const Fields places = answer.object(key);
  for (const auto& [name, place] : places.json().items())
    tensors.emplace_back(name, place.is_null() ? at::Tensor() : taken(place_from(place, name)));
  if (any_on_device) device_arena_->wait();  // the next request may come from another stream
  return tensors;
}

std::string Connection::transport() const {
  if (!why_copied_.empty()) return fmt::format("host copies ({})", why_copied_);
  return shared_ ? "CUDA IPC" : "shared memory";
}

}  // namespace suites::implementation
