#include "base/yaml.hpp"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "base/files.hpp"
#include "base/utf8.hpp"

namespace base {

namespace {

class Bounds : public YAML::EventHandler {
 public:
  explicit Bounds(const YamlLimits& limits) : limits_(limits) {}

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (mark.pos == last_document_) refuse(mark, "what stands here belongs to nothing before it");
    last_document_ = mark.pos;
    anchors_.clear();
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override { add(mark, anchor, 1); }
  void OnScalar(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor, const std::string&) override {
    add(mark, anchor, 1);
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto target = anchors_.find(anchor);
    if (target == anchors_.end()) refuse(mark, "an alias within its own anchor");
    add(mark, 0, target->second);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    begin(mark, anchor);
  }
  void OnSequenceEnd() override { end(); }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    begin(mark, anchor);
  }
  void OnMapEnd() override { end(); }

 private:
  struct Open {
    YAML::anchor_t anchor;
    std::size_t before;  // nodes that had been counted when it began
  };

  [[noreturn]] static void refuse(const YAML::Mark& mark, const std::string& what) {
    throw YAML::ParserException(mark, what);
  }

  void add(const YAML::Mark& mark, YAML::anchor_t anchor, std::size_t nodes) {
    if (anchor != 0) anchors_[anchor] = nodes;
    nodes_ += nodes;  // both are at most limits_.nodes: no overflow
    if (nodes_ > limits_.nodes)
      refuse(mark, fmt::format("more than {} values, aliases counted as what they stand for", limits_.nodes));
  }
  void begin(const YAML::Mark& mark, YAML::anchor_t anchor) {
    open_.push_back({anchor, nodes_});
    if (open_.size() > limits_.depth) refuse(mark, fmt::format("nested more than {} levels deep", limits_.depth));
    add(mark, 0, 1);
  }
  void end() {
    const Open closed = open_.back();
    open_.pop_back();
    if (closed.anchor != 0) anchors_[closed.anchor] = nodes_ - closed.before;
  }

  const YamlLimits& limits_;
  int last_document_ = -1;
  std::size_t nodes_ = 0;
  std::vector<Open> open_;
  std::map<YAML::anchor_t, std::size_t> anchors_;  // how many nodes each stands for
};

YAML::Mark mark_of(const std::string& text, std::size_t at) {
  YAML::Mark mark;
  mark.pos = static_cast<int>(at);
  mark.line = static_cast<int>(std::count(text.begin(), text.begin() + mark.pos, '\n'));
  mark.column = static_cast<int>(at - (text.rfind('\n', at) + 1));  // npos + 1 is 0
  return mark;
}

}  // namespace

std::vector<YAML::Node> load_yaml(const std::string& text, const YamlLimits& limits) {
  if (text.size() > limits.bytes)
    throw YAML::ParserException(YAML::Mark(), fmt::format("longer than {} bytes", limits.bytes));
  if (const std::size_t bad = first_not_utf8(text); bad < text.size())
    throw YAML::ParserException(mark_of(text, bad), "not UTF-8");
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  Bounds bounds(limits);
  while (parser.HandleNextDocument(bounds)) {
  }
  return YAML::LoadAll(text);
}

std::vector<YAML::Node> load_yaml_file(const std::filesystem::path& file, const YamlLimits& limits) {
  return load_yaml(read_head(file, limits.bytes + 1), limits);  // one byte more, so that too long is seen
}

}  // namespace base
