#include "libraries.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>

namespace kvram::test {
namespace {

void* open_library(const char* name) {
  const char* prefix = std::getenv("KUBE_VRAM_PREFIX");
  std::string root = prefix != nullptr ? prefix : std::filesystem::read_symlink("/proc/self/exe").parent_path() / "..";
  std::string path = root + "/lib/kube-vram/sim/" + name;
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    std::abort();
  }
  return library;
}

constexpr int kReadyFd = 97;

}  // namespace

void* symbol(const char* name) {
  static void* const cuda = open_library("libcuda.so.1");
  static void* const nvml = open_library("libnvidia-ml.so.1");
  void* found = dlsym(std::strncmp(name, "cu", 2) == 0 ? cuda : nvml, name);
  if (found == nullptr) {
    std::fprintf(stderr, "no %s in the simulated driver\n", name);
    std::abort();
  }
  return found;
}

SimFolder::SimFolder(const std::string& spec) : path_("/dev/shm/kvram-sim-XXXXXX") {
  if (mkdtemp(path_.data()) == nullptr) std::abort();
  setenv("KUBE_VRAM_SIM_DIR", path_.c_str(), 1);
  setenv("KUBE_VRAM_SIM", spec.c_str(), 1);
}

SimFolder::~SimFolder() { std::filesystem::remove_all(path_); }

Child::Child(const std::string& mode) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) std::abort();
  pid_ = fork();
  if (pid_ == 0) {
    dup2(ends[1], kReadyFd);
    std::string argument = "--child=" + mode;
    execl("/proc/self/exe", "simgpu_child", argument.c_str(), nullptr);
    _exit(127);
  }
  close(ends[1]);
  from_child_ = ends[0];
}

Child::~Child() {
  kill();
  close(from_child_);
}

bool Child::wait_ready() {
  char byte = 0;
  return read(from_child_, &byte, 1) == 1;
}

void Child::kill() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void say_ready() {
  char byte = 1;
  if (write(kReadyFd, &byte, 1) != 1) _exit(3);
}

std::string ptx(const std::vector<int>& microseconds) {
  std::string text = ".version 8.0\n.target sm_80\n.address_size 64\n\n.visible .global .align 4 .b8 table[4096];\n";
  for (int us : microseconds) {
    text += "// sim: us=" + std::to_string(us) + "\n.visible .entry k" + std::to_string(us) +
            "(.param .u64 at, .param .u32 n)\n{\n  ret;\n}\n\n";
  }
  return text;
}

uint64_t now_us() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000 + static_cast<uint64_t>(now.tv_nsec) / 1000;
}

}  // namespace kvram::test
