#include "simgpu/machine_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

namespace kvram::simgpu {
namespace {

std::string why() { return std::strerror(errno); }

mode_t shared_mode(const std::string& path) {
  struct stat st{};
  std::string folder = path.substr(0, path.rfind('/'));
  return stat(folder.c_str(), &st) == 0 ? st.st_mode & 0666 : 0600;
}

void init_mutex(pthread_mutex_t* mutex) {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
}

// Memory of a machine that is gone.
void remove_arenas(const std::string& folder) {
  DIR* dir = opendir(folder.c_str());
  if (dir == nullptr) return;
  std::vector<std::string> names;
  while (dirent* e = readdir(dir)) {
    if (std::strncmp(e->d_name, "arena-", 6) == 0) names.emplace_back(e->d_name);
  }
  closedir(dir);
  for (const std::string& name : names) unlink((folder + "/" + name).c_str());
}

}  // namespace

int open_shared(const std::string& path, int flags) {
  // Fill the low numbers first, rather than moving the descriptor afterwards: closing the moved-from one would drop
  // this process's locks on the file.
  int filler[3];
  int filled = 0;
  int fd = -1;
  while (filled < 3) {
    int low = open("/", O_PATH | O_CLOEXEC);
    if (low < 0 || low > 2) {
      if (low >= 0) close(low);
      break;
    }
    filler[filled++] = low;
  }
  fd = open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, 0600);
  int error = errno;
  struct stat st{};
  if (fd >= 0 && (flags & O_CREAT) != 0 && fstat(fd, &st) == 0 && st.st_uid == geteuid()) {
    mode_t mode = shared_mode(path);
    if ((st.st_mode & 0666) != mode) fchmod(fd, mode);
  }
  while (filled > 0) close(filler[--filled]);
  errno = error;
  return fd;
}

int slots_descriptor(const std::string& folder) {
  struct Known {
    std::string folder;
    dev_t device;
    ino_t inode;
    int fd;
  };
  static std::mutex* const mutex = new std::mutex;
  static auto* const known = new std::vector<Known>;
  std::lock_guard lock(*mutex);
  std::string path = folder + "/slots";
  struct stat st{};
  if (stat(path.c_str(), &st) == 0) {
    for (const Known& k : *known) {
      if (k.folder == folder && k.device == st.st_dev && k.inode == st.st_ino) return k.fd;
    }
  }
  int fd = open_shared(path, O_RDWR | O_CREAT);
  if (fd >= 0 && fstat(fd, &st) == 0) known->push_back(Known{folder, st.st_dev, st.st_ino, fd});
  return fd;
}

Result<void> make_folder(const std::string& folder) {
  for (size_t slash = folder.find('/', 1); slash != std::string::npos; slash = folder.find('/', slash + 1)) {
    mkdir(folder.substr(0, slash).c_str(), 0700);
  }
  struct stat st{};
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return fail(ErrorCode::kSimMachine, "The folder of the simulated machine, " + folder +
                                            ", cannot be made: " + why() + ". Name another with KUBE_VRAM_SIM_DIR.");
  }
  if (lstat(folder.c_str(), &st) != 0 || !S_ISDIR(st.st_mode) || access(folder.c_str(), W_OK | X_OK) != 0) {
    return fail(ErrorCode::kSimMachine, "The folder of the simulated machine, " + folder +
                                            ", is not a folder that this user can write. Name another with "
                                            "KUBE_VRAM_SIM_DIR.");
  }
  return {};
}

MachineFile* map_machine(const std::string& folder) {
  int fd = open_shared(folder + "/machine", O_RDWR);
  if (fd < 0) return nullptr;
  struct stat st{};
  void* at = MAP_FAILED;
  if (fstat(fd, &st) == 0 && st.st_size == static_cast<off_t>(sizeof(MachineFile))) {
    at = mmap(nullptr, sizeof(MachineFile), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  close(fd);
  if (at == MAP_FAILED) return nullptr;
  auto* file = static_cast<MachineFile*>(at);
  if (file->magic == kMachineMagic && file->version == kMachineVersion && file->gpus <= kMaxGpus) return file;
  munmap(at, sizeof(MachineFile));
  return nullptr;
}

Result<MachineFile*> create_machine(const std::string& folder, const std::string& text, const GpuInfo* gpus,
                                    uint32_t count) {
  std::string path = folder + "/machine";
  std::string fresh = path + ".new";
  unlink(fresh.c_str());
  int fd = open_shared(fresh, O_RDWR | O_CREAT | O_EXCL);
  void* at = MAP_FAILED;
  if (fd >= 0 && ftruncate(fd, sizeof(MachineFile)) == 0) {
    at = mmap(nullptr, sizeof(MachineFile), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  std::string reason = why();
  if (fd >= 0) close(fd);
  if (at == MAP_FAILED) return fail(ErrorCode::kSimMachine, "The file " + fresh + " cannot be made: " + reason + ".");
  auto* file = static_cast<MachineFile*>(at);
  file->version = kMachineVersion;
  file->gpus = count;
  file->next_id = 1;
  std::snprintf(file->spec, sizeof file->spec, "%s", text.c_str());
  for (uint32_t g = 0; g < count; ++g) file->gpu[g].info = gpus[g];
  init_mutex(&file->mutex);
  __atomic_store_n(&file->magic, kMachineMagic, __ATOMIC_RELEASE);
  remove_arenas(folder);
  if (rename(fresh.c_str(), path.c_str()) != 0) {
    reason = why();
    munmap(at, sizeof(MachineFile));
    return fail(ErrorCode::kSimMachine, "The file " + path + " cannot be made: " + reason + ".");
  }
  return file;
}

uint64_t image_token() {
  uint64_t token = 0;
  if (auto random = getauxval(AT_RANDOM)) std::memcpy(&token, reinterpret_cast<const void*>(random), sizeof token);
  return token;
}

uint64_t process_start_time() {
  char text[1024];
  int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  ssize_t length = read(fd, text, sizeof text - 1);
  close(fd);
  if (length <= 0) return 0;
  text[length] = '\0';
  const char* at = std::strrchr(text, ')');  // the program's name may hold anything
  for (int field = 2; at != nullptr && field < 22; ++field) at = std::strchr(at + 1, ' ');
  return at == nullptr ? 0 : std::strtoull(at, nullptr, 10);
}

}  // namespace kvram::simgpu
