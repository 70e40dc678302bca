// Strict reading of a JSON object: what is missing, of another type or not known is an error that says where it stands.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "suites/scenario/scenario.hpp"

namespace suites::scenario {

class Reader {
 public:
  // `place`: "FILE: attempts[0]". The object must outlive it.
  Reader(const Json& json, std::string place);

  [[nodiscard]] bool has(const char* key);
  [[nodiscard]] std::string text(const char* key);                                   // not empty
  [[nodiscard]] std::string text_or(const char* key, const std::string& otherwise);  // not empty where it stands
  [[nodiscard]] std::string one_of(const char* key, const std::vector<std::string>& allowed, const char* what);
  [[nodiscard]] std::vector<std::string> texts(const char* key);  // none where it does not stand; else not empty
  [[nodiscard]] std::vector<std::string> known_texts(const char* key, const std::vector<std::string>& known,
                                                     const char* what);
  [[nodiscard]] bool flag(const char* key);  // false where it does not stand
  [[nodiscard]] std::optional<double> number(const char* key);
  [[nodiscard]] const Json& any(const char* key);
  [[nodiscard]] std::vector<Reader> objects(const char* key);  // at least one
  [[nodiscard]] Reader object(const char* key);
  [[nodiscard]] std::map<std::string, std::string> text_map(const char* key, const std::vector<std::string>& known,
                                                            const char* what);

  void done() const;  // a key that nobody asked for is an error
  [[noreturn]] void refuse(const std::string& key, const std::string& what) const;
  void must_be_known(const std::string& key, const std::string& name, const std::vector<std::string>& known,
                     const char* what) const;

 private:
  [[nodiscard]] const Json* find(const char* key);
  [[nodiscard]] const Json& need(const char* key);
  const Json* json_;
  std::string place_;
  std::set<std::string> asked_;
};

// Of a file's text: one object in which no key stands twice.
[[nodiscard]] Json parse_object(const std::string& text, const std::string& file);

}  // namespace suites::scenario
