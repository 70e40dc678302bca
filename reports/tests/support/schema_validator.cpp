#include "reports/tests/support/schema_validator.hpp"

#include <fmt/format.h>

#include <map>
#include <regex>
#include <stdexcept>

namespace reports::schema {

namespace {

// How a keyword holds subschemas; nothing for those that hold plain values.
enum class Holds { nothing, schema, schema_array, schema_map };

const std::map<std::string, Holds>& keywords() {
  static const std::map<std::string, Holds> table{
      {"$schema", Holds::nothing},
      {"$id", Holds::nothing},
      {"$comment", Holds::nothing},
      {"title", Holds::nothing},
      {"description", Holds::nothing},
      {"$ref", Holds::nothing},
      {"type", Holds::nothing},
      {"enum", Holds::nothing},
      {"const", Holds::nothing},
      {"required", Holds::nothing},
      {"pattern", Holds::nothing},
      {"minimum", Holds::nothing},
      {"minLength", Holds::nothing},
      {"minItems", Holds::nothing},
      {"properties", Holds::schema_map},
      {"definitions", Holds::schema_map},
      {"additionalProperties", Holds::schema},
      {"items", Holds::schema},
      {"contains", Holds::schema},
      {"not", Holds::schema},
      {"if", Holds::schema},
      {"then", Holds::schema},
      {"else", Holds::schema},
      {"allOf", Holds::schema_array},
      {"anyOf", Holds::schema_array},
      {"oneOf", Holds::schema_array},
  };
  return table;
}

class Validator {
 public:
  explicit Validator(const Json& root) : root_(root) { inspect(root, "#"); }

  [[nodiscard]] std::vector<std::string> run(const Json& value) {
    check(root_, value, "");
    return std::move(found_);
  }

 private:
  const Json& root_;
  std::vector<std::string> found_;

  void inspect(const Json& schema, const std::string& where) const {
    if (schema.is_boolean()) return;
    if (!schema.is_object()) throw std::invalid_argument(where + ": a schema is an object or a boolean");
    for (const auto& [key, part] : schema.items()) {
      const auto known = keywords().find(key);
      if (known == keywords().end()) throw std::invalid_argument(fmt::format("{}: unknown keyword '{}'", where, key));
      const std::string inside = where + "/" + key;
      if (known->second == Holds::schema) inspect(part, inside);
      if (known->second != Holds::schema_array && known->second != Holds::schema_map) continue;
      for (const auto& [name, item] : part.items()) inspect(item, inside + "/" + name);
    }
    if (schema.contains("$ref")) (void)target(schema);
  }

  [[nodiscard]] const Json& target(const Json& schema) const {
    const auto reference = schema.at("$ref").get<std::string>();
    if (reference.rfind("#/", 0) != 0) throw std::invalid_argument("unsupported $ref " + reference);
    const Json::json_pointer pointer(reference.substr(1));
    if (!root_.contains(pointer)) throw std::invalid_argument("$ref leads nowhere: " + reference);
    return root_.at(pointer);
  }

  void complain(const std::string& where, const std::string& what) {
    found_.push_back(fmt::format("{}: {}", where.empty() ? "/" : where, what));
  }

  [[nodiscard]] bool holds(const Json& schema, const Json& value) {
    Validator probe(*this);
    probe.found_.clear();
    probe.check(schema, value, "");
    return probe.found_.empty();
  }

  static bool is_type(const Json& value, const std::string& type) {
    if (type == "object") return value.is_object();
    if (type == "array") return value.is_array();
    if (type == "string") return value.is_string();
    if (type == "boolean") return value.is_boolean();
    if (type == "null") return value.is_null();
    if (type == "number") return value.is_number();
    if (type == "integer") return value.is_number_integer();
    throw std::invalid_argument("unknown type '" + type + "'");
  }

  void check(const Json& schema, const Json& value, const std::string& where) {
    if (schema.is_boolean()) {
      if (!schema.get<bool>()) complain(where, "not allowed");
      return;
    }
    if (schema.contains("$ref")) check(target(schema), value, where);
    check_value(schema, value, where);
    if (value.is_object()) check_object(schema, value, where);
    if (value.is_array()) check_array(schema, value, where);
    check_logic(schema, value, where);
  }

  void check_value(const Json& schema, const Json& value, const std::string& where) {
    if (schema.contains("type")) {
      const Json types = schema.at("type").is_array() ? schema.at("type") : Json::array({schema.at("type")});
      bool any = false;
      for (const auto& type : types) any = any || is_type(value, type.get<std::string>());
      if (!any) complain(where, fmt::format("is {}, not of type {}", value.dump(), types.dump()));
    }
    if (schema.contains("const") && value != schema.at("const")) {
      complain(where, fmt::format("is {}, not {}", value.dump(), schema.at("const").dump()));
    }
    if (schema.contains("enum")) {
      bool any = false;
      for (const auto& word : schema.at("enum")) any = any || word == value;
      if (!any) complain(where, fmt::format("is {}, not one of {}", value.dump(), schema.at("enum").dump()));
    }
    if (schema.contains("pattern") && value.is_string() &&
        !std::regex_search(value.get<std::string>(), std::regex(schema.at("pattern").get<std::string>()))) {
      complain(where, fmt::format("is {}, does not match {}", value.dump(), schema.at("pattern").dump()));
    }
    if (schema.contains("minLength") && value.is_string() && value.get<std::string>().size() < schema.at("minLength")) {
      complain(where, "is too short");
    }
    if (schema.contains("minimum") && value.is_number() &&
        !(value.get<double>() >= schema.at("minimum").get<double>())) {
      complain(where, fmt::format("is {}, below {}", value.dump(), schema.at("minimum").dump()));
    }
  }

  void check_object(const Json& schema, const Json& value, const std::string& where) {
    if (schema.contains("required")) {
      for (const auto& key : schema.at("required")) {
        if (!value.contains(key.get<std::string>())) complain(where, "lacks " + key.dump());
      }
    }
    for (const auto& [key, item] : value.items()) {
      if (schema.contains("properties") && schema.at("properties").contains(key)) {
        check(schema.at("properties").at(key), item, where + "/" + key);
      } else if (schema.contains("additionalProperties")) {
        check(schema.at("additionalProperties"), item, where + "/" + key);
      }
    }
  }

  void check_array(const Json& schema, const Json& value, const std::string& where) {
    if (schema.contains("minItems") && value.size() < schema.at("minItems")) complain(where, "has too few items");
    bool contained = false;
    for (std::size_t i = 0; i < value.size(); ++i) {
      if (schema.contains("items")) check(schema.at("items"), value[i], fmt::format("{}/{}", where, i));
      contained = contained || (schema.contains("contains") && holds(schema.at("contains"), value[i]));
    }
    if (schema.contains("contains") && !contained)
      complain(where, "contains no item such as " + schema.at("contains").dump());
  }

  // With a single alternative that comes near, its complaints are worth more than "none of them".
  void check_logic(const Json& schema, const Json& value, const std::string& where) {
    if (schema.contains("allOf")) {
      for (const auto& part : schema.at("allOf")) check(part, value, where);
    }
    for (const char* key : {"anyOf", "oneOf"}) {
      if (!schema.contains(key)) continue;
      std::size_t n = 0;
      for (const auto& part : schema.at(key)) n += holds(part, value) ? 1 : 0;
      if (n == 0 || (n > 1 && std::string(key) == "oneOf")) complain(where, fmt::format("fits {} of {}", n, key));
    }
    if (schema.contains("not") && holds(schema.at("not"), value))
      complain(where, "fits what it must not: " + schema.at("not").dump());
    if (!schema.contains("if")) return;
    const char* branch = holds(schema.at("if"), value) ? "then" : "else";
    if (schema.contains(branch)) check(schema.at(branch), value, where);
  }
};

}  // namespace

std::vector<std::string> violations(const Json& schema, const Json& value) { return Validator(schema).run(value); }

}  // namespace reports::schema
