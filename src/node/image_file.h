// The ledger's records as a mapped file of the run folder: what is stored there survives a SIGKILL of the daemon at any
// instruction.
#pragma once
#include <string>

#include "base/result.h"
#include "node/records.h"

namespace kvram::node {

// Maps <run_dir>/ledger; all its space is allocated first, so that a full file system is an error here and not a SIGBUS
// later. A file of an earlier boot is replaced (all its processes are gone); one that makes no sense is kept aside.
class ImageFile {
 public:
  static Result<ImageFile> open(const std::string& run_dir, const std::string& boot_id);
  ImageFile(ImageFile&& other) noexcept;
  ImageFile(const ImageFile&) = delete;
  ImageFile& operator=(const ImageFile&) = delete;
  ~ImageFile();

  LedgerImage& image() { return *image_; }
  bool fresh() const { return fresh_; }                    // nothing came from an earlier daemon
  bool earlier_boot() const { return earlier_boot_; }      // fresh because the machine started anew
  const std::string& warning() const { return warning_; }  // about a file kept aside; empty if none

 private:
  ImageFile() = default;
  LedgerImage* image_ = nullptr;
  bool fresh_ = false;
  bool earlier_boot_ = false;
  std::string warning_;
};

}  // namespace kvram::node
