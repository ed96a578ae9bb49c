#include "node/image_file.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <optional>
#include <utility>

#include "node/ledger.h"

namespace kvram::node {
namespace {

LedgerImage* map(int fd) {
  void* at = mmap(nullptr, sizeof(LedgerImage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return at == MAP_FAILED ? nullptr : static_cast<LedgerImage*>(at);
}

// What is wrong with the file behind `fd`; nothing, with `image` mapped, when it can be used.
std::optional<std::string> try_existing(int fd, LedgerImage*& image) {
  struct stat facts{};
  if (fstat(fd, &facts) != 0 || facts.st_size != static_cast<off_t>(sizeof(LedgerImage))) {
    return fmt::format("it is {} bytes long and not {}", facts.st_size, sizeof(LedgerImage));
  }
  if (posix_fallocate(fd, 0, sizeof(LedgerImage)) != 0) return "its space cannot be allocated";
  image = map(fd);
  if (image == nullptr) return "it cannot be mapped";
  if (auto fault = Ledger::fault_of(*image)) {
    munmap(image, sizeof(LedgerImage));
    image = nullptr;
    return fault;
  }
  return std::nullopt;
}

Result<LedgerImage*> make_new(const std::string& path, const std::string& boot_id) {
  std::string fresh = path + ".new";
  unlink(fresh.c_str());
  int fd = ::open(fresh.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  int error = fd < 0 ? errno : posix_fallocate(fd, 0, sizeof(LedgerImage));
  LedgerImage* image = error == 0 ? map(fd) : nullptr;
  if (image != nullptr) {
    Ledger::format(*image, boot_id);
    if (rename(fresh.c_str(), path.c_str()) == 0) {
      close(fd);
      return image;
    }
    error = errno;
    munmap(image, sizeof(LedgerImage));
  }
  if (fd >= 0) close(fd);
  unlink(fresh.c_str());
  return fail(
      ErrorCode::kRunFolder,
      fmt::format("The ledger {} cannot be made: {}. It needs {} MiB; without it budgets could not be kept. Free "
                  "space or name another folder with --run-dir.",
                  path, strerror(error != 0 ? error : ENOMEM), (sizeof(LedgerImage) >> 20) + 1));
}

}  // namespace

Result<ImageFile> ImageFile::open(const std::string& run_dir, const std::string& boot_id) {
  std::string path = run_dir + "/ledger";
  ImageFile file;
  int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (fd >= 0) {
    auto fault = try_existing(fd, file.image_);
    close(fd);
    if (!fault && boot_id != file.image_->boot_id) {
      munmap(file.image_, sizeof(LedgerImage));
      file.image_ = nullptr;
      file.earlier_boot_ = true;
    } else if (fault) {
      std::string aside = fmt::format("{}.corrupt-{}", path, time(nullptr));
      rename(path.c_str(), aside.c_str());
      file.warning_ = fmt::format(
          "The ledger was damaged ({}) and is kept aside as {}. Budgets come from the journal of "
          "the state folder; programs that still run are counted again as they report.",
          *fault, aside);
    }
  }
  if (file.image_ == nullptr) {
    Result<LedgerImage*> made = make_new(path, boot_id);
    if (!made) return std::unexpected(made.error());
    file.image_ = *made;
    file.fresh_ = true;
  }
  return file;
}

ImageFile::ImageFile(ImageFile&& other) noexcept
    : image_(std::exchange(other.image_, nullptr)),
      fresh_(other.fresh_),
      earlier_boot_(other.earlier_boot_),
      warning_(std::move(other.warning_)) {}
ImageFile::~ImageFile() {
  if (image_ != nullptr) munmap(image_, sizeof(LedgerImage));
}

}  // namespace kvram::node
