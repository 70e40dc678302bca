// Batches of the documents of a JSONL file, end to end.
#pragma once

#include <cstdint>
#include <vector>

#include "nsa/train/jsonl.hpp"

namespace nsa::train {

class JsonlStream : public BatchStream {
 public:
  // Throws as open_stream.
  explicit JsonlStream(const StreamOptions& options);
  Batch next() override;
  [[nodiscard]] nlohmann::json position() const override;
  void seek(const nlohmann::json& position) override;

 private:
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
  void go(const Place& place);        // throws std::invalid_argument for one that is not in the file
  [[nodiscard]] Place place() const;  // of the token that take() would begin with
  bool next_document();
  [[nodiscard]] std::int64_t document_size() const;  // tokens; 0 without one
  Row take();                                        // up to S+1 tokens; the next row begins with the last of them
  std::vector<Row> take_batch();                     // rows of one length; none at the end of the data

  StreamOptions options_;
  JsonlReader reader_;
  nlohmann::json identity_;
  Place position_;     // of the next batch
  bool there_ = true;  // the reader stands at position_; false after an exception and before a row to be taken again
  bool in_document_ = false;
  std::int64_t token_ = 0;  // the next of the document
};

}  // namespace nsa::train
