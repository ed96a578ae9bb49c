// The simulated machine with many processes: what a process holds comes back however it dies, shared memory lives until
// its last holder, and data is the same from every process that maps it.
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <vector>

#define __CUDA_API_VERSION_INTERNAL  // cuda.h declares every version of a function
#include <cuda.h>

#include "simgpu/machine.h"

namespace {

using kvram::simgpu::Machine;

// The driver's functions, found in a library opened by the process that uses them.
struct Cuda {
  void* library =
      dlopen((std::string(getenv("KUBE_VRAM_PREFIX")) + "/lib/kube-vram/sim/libcuda.so.1").c_str(), RTLD_NOW);
  template <typename F>
  F* get(const char* name) const {
    return reinterpret_cast<F*>(dlsym(library, name));
  }
#define FN(name) decltype(::name)* name = get<decltype(::name)>(#name)
  FN(cuInit);
  FN(cuCtxCreate_v2);
  FN(cuCtxDestroy_v2);
  FN(cuMemAlloc_v2);
  FN(cuMemFree_v2);
  FN(cuMemGetInfo_v2);
  FN(cuMemAllocAsync);
  FN(cuMemFreeAsync);
  FN(cuCtxSynchronize);
  FN(cuMemCreate);
  FN(cuMemRelease);
  FN(cuMemExportToShareableHandle);
  FN(cuMemImportFromShareableHandle);
  FN(cuMemAddressReserve);
  FN(cuMemMap);
  FN(cuMemUnmap);
  FN(cuMemSetAccess);
  FN(cuMemcpyHtoD_v2);
  FN(cuMemcpyDtoH_v2);
  FN(cuIpcGetMemHandle);
  FN(cuIpcOpenMemHandle_v2);
  FN(cuIpcCloseMemHandle);
#undef FN
};

constexpr size_t kMiB = 1 << 20;

class MachineTest : public testing::Test {
 protected:
  void SetUp() override {
    char path[] = "/dev/shm/kv-machine-XXXXXX";
    folder_ = mkdtemp(path);
    setenv("KUBE_VRAM_SIM_DIR", folder_.c_str(), 1);
    setenv("KUBE_VRAM_SIM", "2xA10", 1);
    auto opened = Machine::open(folder_, "2xA10", false);
    ASSERT_TRUE(opened.has_value()) << opened.error().message;
    machine_ = std::move(*opened);
  }
  void TearDown() override {
    machine_.reset();
    std::filesystem::remove_all(folder_);
  }
  uint64_t context_bytes() { return machine_->gpu(0).costs.context_bytes; }

  std::string folder_;
  std::unique_ptr<Machine> machine_;
};

pid_t in_child(const std::function<int()>& body) {
  pid_t pid = fork();
  if (pid == 0) _exit(body());
  return pid;
}

int exit_of(pid_t pid) {
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

CUmemAllocationProp shareable() {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return prop;
}

// A message of one byte with room for one descriptor.
struct Packet {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  char byte = 'x';
  iovec data{&byte, 1};
  msghdr header{};
  Packet() {
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
  }
};

bool send_descriptor(int socket, int fd) {
  Packet packet;
  cmsghdr* part = CMSG_FIRSTHDR(&packet.header);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_RIGHTS;
  part->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(part), &fd, sizeof fd);
  return sendmsg(socket, &packet.header, 0) == 1;
}

int receive_descriptor(int socket) {
  Packet packet;
  int fd = -1;
  if (recvmsg(socket, &packet.header, 0) != 1 || CMSG_FIRSTHDR(&packet.header) == nullptr) return -1;
  std::memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&packet.header)), sizeof fd);
  return fd;
}

// Takes and gives back memory in every way, for ever.
int churn(unsigned seed) {
  Cuda cuda;
  CUcontext context = nullptr;
  if (cuda.cuInit(0) != CUDA_SUCCESS || cuda.cuCtxCreate_v2(&context, 0, static_cast<int>(seed % 2)) != CUDA_SUCCESS) {
    return 3;
  }
  std::minstd_rand random(seed + 1);
  std::vector<CUdeviceptr> blocks;
  std::vector<int> descriptors;
  while (true) {
    size_t bytes = (random() % 64 + 1) * kMiB;
    CUdeviceptr p = 0;
    switch (random() % 6) {
      case 0:
      case 1:
        if (cuda.cuMemAlloc_v2(&p, bytes) == CUDA_SUCCESS) blocks.push_back(p);
        break;
      case 2:
        if (cuda.cuMemAllocAsync(&p, bytes, nullptr) == CUDA_SUCCESS) cuda.cuMemFreeAsync(p, nullptr);
        break;
      case 3: {
        CUmemAllocationProp prop = shareable();
        CUmemGenericAllocationHandle handle = 0;
        int fd = -1;
        if (cuda.cuMemCreate(&handle, bytes / (2 * kMiB) * 2 * kMiB + 2 * kMiB, &prop, 0) != CUDA_SUCCESS) break;
        cuda.cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
        cuda.cuMemRelease(handle);
        if (fd >= 0) descriptors.push_back(fd);
        break;
      }
      case 4: {
        CUipcMemHandle handle;
        if (!blocks.empty()) cuda.cuIpcGetMemHandle(&handle, blocks.back());
        break;
      }
      default:
        cuda.cuCtxSynchronize();
    }
    if (blocks.size() > 8 || random() % 3 == 0) {
      if (!blocks.empty()) cuda.cuMemFree_v2(blocks.back()), blocks.pop_back();
    }
    if (descriptors.size() > 4) close(descriptors.back()), descriptors.pop_back();
  }
}

TEST_F(MachineTest, WhatAProcessHoldsComesBackWhenItIsKilled) {
  unsigned seed = static_cast<unsigned>(time(nullptr));
  if (const char* set = getenv("KV_SEED")) seed = static_cast<unsigned>(atoi(set));
  std::printf("seed %u (KV_SEED=%u repeats it)\n", seed, seed);
  std::minstd_rand random(seed);
  bool held_something = false;
  for (int round = 0; round < 60; ++round) {
    std::vector<pid_t> children;
    for (unsigned i = 0; i < 3; ++i) {
      unsigned own = static_cast<unsigned>(random());
      children.push_back(in_child([own] { return churn(own); }));
    }
    usleep(2000 + static_cast<useconds_t>(random() % 20000));
    held_something |= machine_->used(0) + machine_->used(1) > 0;
    for (pid_t child : children) {
      usleep(static_cast<useconds_t>(random() % 1000));
      kill(child, SIGKILL);
      EXPECT_EQ(exit_of(child), 128 + SIGKILL);
    }
    ASSERT_EQ(machine_->used(0), 0U) << "round " << round;
    ASSERT_EQ(machine_->used(1), 0U) << "round " << round;
    ASSERT_TRUE(machine_->processes(0).empty());
  }
  EXPECT_TRUE(held_something) << "no child lived long enough to hold anything";
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    EXPECT_FALSE(entry.path().filename().string().starts_with("arena-")) << entry.path();
  }
}

TEST_F(MachineTest, ExportedMemoryLivesInItsDescriptorAfterItsMakerIsKilled) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  pid_t maker = in_child([&] {
    Cuda cuda;
    CUcontext context = nullptr;
    CUmemAllocationProp prop = shareable();
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr at = 0;
    CUmemAccessDesc access{prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    int fd = -1;
    const char text[] = "from the maker";
    if (cuda.cuInit(0) != CUDA_SUCCESS || cuda.cuCtxCreate_v2(&context, 0, 0) != CUDA_SUCCESS) return 1;
    if (cuda.cuMemCreate(&handle, 4 * kMiB, &prop, 0) != CUDA_SUCCESS) return 2;
    if (cuda.cuMemAddressReserve(&at, 4 * kMiB, 0, 0, 0) != CUDA_SUCCESS) return 3;
    if (cuda.cuMemMap(at, 4 * kMiB, 0, handle, 0) != CUDA_SUCCESS) return 4;
    if (cuda.cuMemcpyHtoD_v2(at, text, sizeof text) == CUDA_SUCCESS) return 5;  // no access yet
    if (cuda.cuMemSetAccess(at, 4 * kMiB, &access, 1) != CUDA_SUCCESS) return 6;
    if (cuda.cuMemcpyHtoD_v2(at, text, sizeof text) != CUDA_SUCCESS) return 7;
    if (cuda.cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) != CUDA_SUCCESS) {
      return 8;
    }
    if (!send_descriptor(pair[0], fd)) return 9;
    kill(getpid(), SIGKILL);
    return 10;
  });
  EXPECT_EQ(exit_of(maker), 128 + SIGKILL);
  // Only the descriptor in the socket holds it now.
  EXPECT_EQ(machine_->used(0), 4 * kMiB);
  EXPECT_TRUE(machine_->processes(0).empty());

  int fd = receive_descriptor(pair[1]);
  ASSERT_GE(fd, 0);
  pid_t taker = in_child([&] {
    Cuda cuda;
    CUcontext context = nullptr;
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr at = 0;
    CUmemAccessDesc access{shareable().location, CU_MEM_ACCESS_FLAGS_PROT_READ};
    char text[32] = {};
    if (cuda.cuInit(0) != CUDA_SUCCESS || cuda.cuCtxCreate_v2(&context, 0, 0) != CUDA_SUCCESS) return 1;
    auto os_handle = reinterpret_cast<void*>(static_cast<intptr_t>(fd));
    auto type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (cuda.cuMemImportFromShareableHandle(&handle, os_handle, type) != CUDA_SUCCESS) return 2;
    if (cuda.cuMemAddressReserve(&at, 4 * kMiB, 0, 0, 0) != CUDA_SUCCESS) return 3;
    if (cuda.cuMemMap(at, 4 * kMiB, 0, handle, 0) != CUDA_SUCCESS) return 4;
    if (cuda.cuMemSetAccess(at, 4 * kMiB, &access, 1) != CUDA_SUCCESS) return 5;
    if (cuda.cuMemcpyDtoH_v2(text, at, 16) != CUDA_SUCCESS) return 6;
    return std::strcmp(text, "from the maker") == 0 ? 0 : 7;
  });
  EXPECT_EQ(exit_of(taker), 0);
  EXPECT_EQ(machine_->used(0), 4 * kMiB);
  close(fd);
  EXPECT_EQ(machine_->used(0), 0U);
  close(pair[0]);
  close(pair[1]);
}

TEST_F(MachineTest, MemoryOpenedByHandleIsChargedOnceAndOutlivesItsMaker) {
  int to_taker[2];
  int to_maker[2];
  ASSERT_EQ(pipe(to_taker), 0);
  ASSERT_EQ(pipe(to_maker), 0);
  pid_t maker = in_child([&] {
    Cuda cuda;
    CUcontext context = nullptr;
    CUdeviceptr p = 0;
    CUipcMemHandle handle;
    CUdeviceptr opened = 0;
    if (cuda.cuInit(0) != CUDA_SUCCESS || cuda.cuCtxCreate_v2(&context, 0, 0) != CUDA_SUCCESS) return 1;
    if (cuda.cuMemAlloc_v2(&p, 3 * kMiB) != CUDA_SUCCESS || cuda.cuMemcpyHtoD_v2(p, "shared", 7) != CUDA_SUCCESS)
      return 2;
    if (cuda.cuIpcGetMemHandle(&handle, p) != CUDA_SUCCESS) return 3;
    if (cuda.cuIpcOpenMemHandle_v2(&opened, handle, 1) != CUDA_ERROR_INVALID_CONTEXT) return 4;  // its own
    if (write(to_taker[1], &handle, sizeof handle) != sizeof handle) return 5;
    char byte = 0;
    return read(to_maker[0], &byte, 1) == 1 ? kill(getpid(), SIGKILL) : 6;
  });
  pid_t taker = in_child([&] {
    Cuda cuda;
    CUcontext context = nullptr;
    CUdeviceptr p = 0;
    CUdeviceptr again = 0;
    CUipcMemHandle handle;
    char text[8] = {};
    if (read(to_taker[0], &handle, sizeof handle) != sizeof handle) return 1;
    if (cuda.cuInit(0) != CUDA_SUCCESS || cuda.cuCtxCreate_v2(&context, 0, 0) != CUDA_SUCCESS) return 2;
    if (cuda.cuIpcOpenMemHandle_v2(&p, handle, 1) != CUDA_SUCCESS) return 3;
    if (cuda.cuIpcOpenMemHandle_v2(&again, handle, 1) != CUDA_SUCCESS || again != p) return 4;
    if (machine_->used(0) != 2 * context_bytes() + 3 * kMiB) return 5;
    if (write(to_maker[1], "x", 1) != 1) return 6;
    for (int i = 0; i < 2000 && machine_->used(0) != context_bytes() + 3 * kMiB; ++i) usleep(1000);
    if (machine_->used(0) != context_bytes() + 3 * kMiB) return 7;
    if (machine_->processes(0).size() != 1 || machine_->processes(0)[0].bytes != context_bytes() + 3 * kMiB) return 8;
    if (cuda.cuMemcpyDtoH_v2(text, p, 7) != CUDA_SUCCESS || std::strcmp(text, "shared") != 0) return 9;
    if (cuda.cuIpcCloseMemHandle(p) != CUDA_SUCCESS || machine_->used(0) != context_bytes() + 3 * kMiB) return 10;
    if (cuda.cuIpcCloseMemHandle(p) != CUDA_SUCCESS || machine_->used(0) != context_bytes()) return 11;
    return cuda.cuIpcOpenMemHandle_v2(&p, handle, 1) == CUDA_SUCCESS ? 12 : 0;
  });
  EXPECT_EQ(exit_of(taker), 0);
  EXPECT_EQ(exit_of(maker), 128 + SIGKILL);
  EXPECT_EQ(machine_->used(0), 0U);
  for (int fd : {to_taker[0], to_taker[1], to_maker[0], to_maker[1]}) close(fd);
}

// Bytes that the files which a process has open in the machine's file system take there. Its arena has no name in the
// folder, so it is found by the process's descriptors.
uint64_t backed(pid_t pid, const std::string& folder) {
  struct stat where{};
  if (stat(folder.c_str(), &where) != 0) return 0;
  uint64_t blocks = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    struct stat st{};
    if (stat(entry.path().c_str(), &st) != 0 || !S_ISREG(st.st_mode) || st.st_dev != where.st_dev) continue;
    blocks += static_cast<uint64_t>(st.st_blocks);
  }
  return blocks * 512;
}

// Resident pages of this process, the file-backed and shared ones included.
uint64_t resident_bytes() {
  unsigned long size = 0;
  unsigned long resident = 0;
  FILE* f = std::fopen("/proc/self/statm", "r");
  if (f == nullptr) return 0;
  bool read = std::fscanf(f, "%lu %lu", &size, &resident) == 2;
  std::fclose(f);
  return read ? resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) : 0;
}

TEST_F(MachineTest, TwentyGiBThatNobodyWritesCostNoMemory) {
  constexpr size_t kBytes = 20480 * kMiB;
  int go[2];
  int ready[2];
  ASSERT_EQ(pipe(go), 0);
  ASSERT_EQ(pipe(ready), 0);
  pid_t child = in_child([&] {
    Cuda cuda;
    CUcontext context = nullptr;
    CUdeviceptr p = 0;
    char byte = 0;
    if (cuda.cuInit(0) != CUDA_SUCCESS || cuda.cuCtxCreate_v2(&context, 0, 0) != CUDA_SUCCESS) return 1;
    uint64_t before = resident_bytes();
    if (cuda.cuMemAlloc_v2(&p, kBytes) != CUDA_SUCCESS) return 2;
    if (before == 0 || resident_bytes() > before + kMiB) return 3;
    if (write(ready[1], &byte, 1) != 1 || read(go[0], &byte, 1) != 1) return 4;
    std::vector<char> data(64 * kMiB, 'w');
    if (cuda.cuMemcpyHtoD_v2(p + 10240 * kMiB, data.data(), data.size()) != CUDA_SUCCESS) return 5;
    if (write(ready[1], &byte, 1) != 1 || read(go[0], &byte, 1) != 1) return 6;
    return 0;
  });
  char byte = 0;
  close(ready[1]);
  ASSERT_EQ(read(ready[0], &byte, 1), 1) << "the child ended with " << exit_of(child);
  EXPECT_EQ(machine_->used(0), kBytes + context_bytes());
  uint64_t untouched = backed(child, folder_);
  EXPECT_LT(untouched, kMiB);
  ASSERT_EQ(write(go[1], &byte, 1), 1);
  ASSERT_EQ(read(ready[0], &byte, 1), 1) << "the child ended with " << exit_of(child);
  // What is written is backed, and no more: this also shows that `backed` sees where data lies.
  EXPECT_GE(backed(child, folder_), untouched + 64 * kMiB);
  EXPECT_LT(backed(child, folder_), untouched + 66 * kMiB);
  ASSERT_EQ(write(go[1], &byte, 1), 1);
  EXPECT_EQ(exit_of(child), 0);
  EXPECT_EQ(machine_->used(0), 0U);
  for (int fd : {go[0], go[1], ready[0]}) close(fd);
}

// The least time of one pair of calls, so that what else runs on the machine does not count.
double pair_ns(const Cuda& cuda) {
  double least = 1e12;
  for (int round = 0; round < 40; ++round) {
    constexpr int kPairs = 50;
    auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kPairs; ++i) {
      CUdeviceptr p = 0;
      if (cuda.cuMemAlloc_v2(&p, 4096) != CUDA_SUCCESS || cuda.cuMemFree_v2(p) != CUDA_SUCCESS) return -1;
    }
    std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    least = std::min(least, took.count() / kPairs);
  }
  return least;
}

TEST_F(MachineTest, TenThousandLiveBlocksDoNotSlowAllocationsDown) {
  pid_t child = in_child([] {
    Cuda cuda;
    CUcontext context = nullptr;
    std::vector<CUdeviceptr> blocks(10000);
    if (cuda.cuInit(0) != CUDA_SUCCESS || cuda.cuCtxCreate_v2(&context, 0, 0) != CUDA_SUCCESS) return 1;
    double few = pair_ns(cuda);
    for (CUdeviceptr& p : blocks) {
      if (cuda.cuMemAlloc_v2(&p, 4096) != CUDA_SUCCESS) return 2;
    }
    // Every second one goes, so that the holes between live blocks are searched, too.
    for (size_t i = 0; i < blocks.size(); i += 2) {
      if (cuda.cuMemFree_v2(blocks[i]) != CUDA_SUCCESS) return 3;
    }
    for (size_t i = 0; i < blocks.size(); i += 2) {
      if (cuda.cuMemAlloc_v2(&blocks[i], 4096) != CUDA_SUCCESS) return 4;
    }
    double many = pair_ns(cuda);
    std::printf("alloc and free: %.0f ns with no block, %.0f ns with 10,000\n", few, many);
    std::fflush(stdout);
    if (few <= 0 || many <= 0) return 5;
    return many < 3 * few ? 0 : 6;  // a walk over the blocks would be a hundred times as long
  });
  EXPECT_EQ(exit_of(child), 0);
  EXPECT_EQ(machine_->used(0), 0U);
}

TEST_F(MachineTest, AForkedChildOfAnInitialisedProcessIsToldSoAndANewProgramStartsAfresh) {
  pid_t parent = in_child([&] {
    Cuda cuda;
    CUcontext context = nullptr;
    CUdeviceptr p = 0;
    if (cuda.cuInit(0) != CUDA_SUCCESS || cuda.cuCtxCreate_v2(&context, 0, 0) != CUDA_SUCCESS) return 1;
    int child = exit_of(in_child([&] {
      if (cuda.cuMemAlloc_v2(&p, kMiB) != CUDA_ERROR_NOT_INITIALIZED) return 1;
      return cuda.cuInit(0) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 2;
    }));
    if (child != 0) return 10 + child;
    if (machine_->used(0) != context_bytes()) return 2;  // the child's end took nothing with it
    if (cuda.cuMemAlloc_v2(&p, kMiB) != CUDA_SUCCESS) return 3;
    // After exec the process is another program, and what it held is gone although its pid lives on.
    execl("/bin/sh", "sh", "-c", "sleep 0.3", nullptr);
    return 4;
  });
  bool gone = false;
  for (int i = 0; i < 200 && !gone; ++i) {
    usleep(1000);
    gone = machine_->used(0) == 0 && machine_->file().next_id > 1;
  }
  EXPECT_TRUE(gone);
  EXPECT_EQ(exit_of(parent), 0);
}

TEST_F(MachineTest, OtherGpusThanThoseOfALiveMachineAreRefusedWithASentence) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  pid_t user = in_child([&] {
    Cuda cuda;
    bool ok = cuda.cuInit(0) == CUDA_SUCCESS && write(ready[1], "r", 1) == 1;
    if (ok) pause();
    return 1;
  });
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  auto other = Machine::open(folder_, "1xT4", false);
  ASSERT_FALSE(other.has_value());
  EXPECT_NE(other.error().message.find("2xA10"), std::string::npos) << other.error().message;
  EXPECT_NE(other.error().message.find("1xT4"), std::string::npos) << other.error().message;
  kill(user, SIGKILL);
  exit_of(user);
  EXPECT_FALSE(machine_->replaced());
  auto fresh = Machine::open(folder_, "t4", false);
  ASSERT_TRUE(fresh.has_value()) << fresh.error().message;
  EXPECT_EQ((*fresh)->gpu_count(), 1U);
  EXPECT_TRUE(machine_->replaced());
  close(ready[0]);
  close(ready[1]);
}

}  // namespace
