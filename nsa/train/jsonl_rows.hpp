// Rows of tokens out of the documents of a JSONL file, end to end.
#pragma once

#include <cstdint>
#include <vector>

#include "nsa/train/batch.hpp"
#include "nsa/train/jsonl.hpp"

namespace nsa::train {

class JsonlRows {
 public:
  // A token: in the document of this line, after `token` others; the next document's first when it has no more.
  struct Place {
    JsonlReader::Place line;
    std::int64_t token = 0;
  };
  struct Row {
    Place start;
    std::vector<std::int64_t> tokens;
    std::vector<std::int32_t> begins;  // of documents, after the row's first token
  };

  explicit JsonlRows(const StreamOptions& options) : options_(options), reader_(options) {}
  void go(const Place& place);        // throws std::invalid_argument for one that is not in the file
  [[nodiscard]] Place place() const;  // of the token that take() would begin with
  Row take();                         // up to S+1 tokens; the next row begins with the last of them
  // Rows of one length as a batch; of a packed row its documents.
  [[nodiscard]] Batch batch_of(const std::vector<Row>& rows) const;

  [[nodiscard]] const DataFile& file() const { return reader_.file(); }

 private:
  bool next_document();
  [[nodiscard]] std::int64_t document_size() const;  // tokens; 0 without one

  StreamOptions options_;
  JsonlReader reader_;
  bool in_document_ = false;
  std::int64_t token_ = 0;  // the next of the document
};

}  // namespace nsa::train
