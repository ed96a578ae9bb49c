// What `vram run --wait` shows while it waits.
#pragma once
#include <cstdint>
#include <string>

namespace kvram::cli {

// On a terminal one line that is written over; else one line for each change. Silent in JSON output.
class WaitingLine {
 public:
  WaitingLine(int fd, bool silent);
  // A new state from the daemon.
  void update(int64_t position, const std::string& reason);
  // Nothing new, time has passed.
  void tick();
  // Takes the line off the terminal.
  void finish();
  int interval_ms() const { return terminal_ && shown_ ? 1000 : -1; }

 private:
  void draw();

  int fd_;
  bool silent_;
  bool terminal_;
  bool shown_ = false;
  double since_ = 0;
  int64_t position_ = 0;
  std::string reason_;
};

// "waiting 12s, place 2: GPU 0 has 1Gi free"; the part that may be cut off is last.
std::string waiting_text(int64_t position, const std::string& reason, double seconds);

}  // namespace kvram::cli
