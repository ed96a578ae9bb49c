// A bounded journal of text lines in the state folder: each line carries a checksum, so that a torn or damaged one is
// found; replaced as a whole by rename. A folder that cannot be written costs the journal, never the daemon.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace kvram::node {

uint32_t crc32(std::string_view text);

class Journal {
 public:
  // `max_bytes`: beyond it the owner is told to rewrite.
  Journal(std::string folder, const std::string& name, size_t max_bytes);
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;
  ~Journal();

  // All lines that are whole. An unfinished last line (power loss) is dropped silently; damage anywhere else keeps the
  // file aside, see kept_aside().
  std::vector<std::string> load();
  // Adds a line (no newline in it). Never blocks for the disk; sync() does. A failure shows in trouble().
  void append(std::string_view line);
  // Replaces the content: written beside, synced, renamed. Clears trouble() when it works.
  void rewrite(const std::vector<std::string>& lines);
  void sync();

  bool wants_rewrite() const { return size_ > max_bytes_ || trouble_.has_value(); }
  // Why lines are only in memory at the moment: kStateFull, kStateReadOnly; nothing when all is written.
  const std::optional<Error>& trouble() const { return trouble_; }
  const std::string& kept_aside() const { return kept_aside_; }

 private:
  void note(int error);
  bool open_for_append();

  std::string folder_;
  std::string path_;
  size_t max_bytes_;
  int fd_ = -1;
  size_t size_ = 0;
  bool dirty_ = false;
  std::optional<Error> trouble_;
  std::string kept_aside_;
};

}  // namespace kvram::node
