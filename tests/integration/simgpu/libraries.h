// The simulated libraries as a program finds them: opened by path, functions looked up by name.
#pragma once
#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL
#endif
#ifndef NVML_NO_UNVERSIONED_FUNC_DEFS
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#endif
#include <cuda.h>
#include <nvml.h>

#include <sys/types.h>

#include <string>
#include <vector>

namespace kvram::test {

// The function of that name in the simulated libcuda.so.1 (names that begin with "cu") or libnvidia-ml.so.1; ends the
// test program when it is missing.
void* symbol(const char* name);

#define SIM(name) (reinterpret_cast<decltype(&::name)>(::kvram::test::symbol(#name)))

// A fresh folder with a simulated machine, in the environment of this process and its children.
class SimFolder {
 public:
  explicit SimFolder(const std::string& spec);
  ~SimFolder();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Another process that runs `mode` (a function of the test program's table) and is killed at the end.
class Child {
 public:
  explicit Child(const std::string& mode);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  // Waits until the child says that it is ready; false if it ended instead.
  bool wait_ready();
  void kill();
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  int from_child_ = -1;
};
// In the child: what wait_ready waits for.
void say_ready();

// A text of PTX with one kernel per duration: "k<us>" takes that many microseconds.
std::string ptx(const std::vector<int>& microseconds);

uint64_t now_us();

}  // namespace kvram::test
