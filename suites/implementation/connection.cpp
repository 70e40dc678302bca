#include "suites/implementation/connection.hpp"

#include <fmt/format.h>

#include "suites/implementation/error.hpp"

namespace suites::implementation {

namespace {

constexpr std::size_t kShown = 200;  // bytes of a bad answer in a message

}  // namespace

Connection::Connection(const std::string& python, const std::filesystem::path& host,
                       const std::filesystem::path& adapter)
    : process_({python, host, adapter, arena_.fd()}) {}

Json Connection::ask(const char* what, const Json& body, Seconds patience) {
  Json request = {{"id", ++last_id_}, {"do", what}};
  request.update(body);
  const std::string line = process_.exchange(reports::dump(request), patience);
  const Json answer = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!answer.is_object()) broken(fmt::format("no JSON object in answer to {}: {}", what, readable(line, kShown)));
  if (!answer.contains("id") || answer["id"] != last_id_)
    broken(fmt::format("the answer to {} has another id than {}: {}", what, last_id_, readable(line, kShown)));
  if (answer.contains("error")) tell(answer["error"]);
  if (!answer.contains("ok"))
    broken(fmt::format("neither ok nor error in answer to {}: {}", what, readable(line, kShown)));
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

Json Connection::put(const Named& tensors, Json& body) {
  arena_.reset();
  Json places = Json::object();
  for (const auto& [name, tensor] : tensors) places[name] = to_json(arena_.put(tensor));
  body["arena"] = arena_.size();
  body["room"] = arena_.room();
  return places;
}

Named Connection::take(const Fields& answer, const char* key) {
  arena_.follow(answer.integer("arena"));
  Named tensors;
  const Fields places = answer.object(key);
  for (const auto& [name, place] : places.json().items())
    tensors.emplace_back(name, place.is_null() ? at::Tensor() : arena_.take(place_from(place, name)));
  return tensors;
}

}  // namespace suites::implementation
