// JSON that came from another process: read field by field, each with the type that it must have.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reports/json.hpp"

namespace suites::implementation {

using reports::Json;

// An object. Every function throws ImplementationError "protocol" that says where, which key, what stands there and
// what is allowed: "answer to forward: seconds is "fast"; allowed: a number".
class Fields {
 public:
  // `where` begins the messages. The JSON must outlive this.
  Fields(const Json& object, std::string where);

  [[nodiscard]] bool has(const char* key) const;  // there, and not null
  [[nodiscard]] const Json& at(const char* key) const;
  [[nodiscard]] Fields object(const char* key) const;
  [[nodiscard]] std::string text(const char* key) const;
  [[nodiscard]] bool truth(const char* key) const;
  [[nodiscard]] std::int64_t integer(const char* key) const;
  [[nodiscard]] std::vector<std::int64_t> integers(const char* key) const;
  [[nodiscard]] double number(const char* key) const;
  [[nodiscard]] std::vector<double> numbers(const char* key) const;
  [[nodiscard]] std::vector<std::string> texts(const char* key) const;

  [[nodiscard]] const Json& json() const { return object_; }
  [[noreturn]] void refuse(const std::string& key, const char* allowed) const;

 private:
  const Json& object_;
  std::string where_;
};

// nullopt: no whole number, or one that int64 does not hold.
[[nodiscard]] std::optional<std::int64_t> as_integer(const Json& value);

}  // namespace suites::implementation
