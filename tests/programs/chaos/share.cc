// Graphs, other threads, other processes.
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "worker.h"

extern char** environ;

namespace chaos {

// One launch or two of a graph that takes `block` when it runs; whoever does not give it back inside does it here.
void Worker::run_graph(CUgraph graph, CUdeviceptr block, bool freed_inside, CUstream on) {
  CUgraphExec exec = nullptr;
  Object object = made(Kind::kGraph, reinterpret_cast<uint64_t>(graph));
  if (granted(cu.cuGraphInstantiate(&exec, graph, 0), "cuGraphInstantiate")) {
    object.second = reinterpret_cast<uint64_t>(exec);
    for (int i = 0; i < (freed_inside ? 2 : 1); ++i) {
      if (!granted(cu.cuGraphLaunch(exec, on), "cuGraphLaunch")) break;
      if (!freed_inside) {
        if (rng_.one_in(2)) {
          must(cu.cuMemFreeAsync(block, on), "cuMemFreeAsync");
        } else {
          must(cu.cuStreamSynchronize(on), "cuStreamSynchronize");
          must(cu.cuMemFree(block), "cuMemFree");
        }
      }
      must(cu.cuStreamSynchronize(on), "cuStreamSynchronize");
    }
  }
  if (rng_.one_in(3)) must(cu.cuDeviceGraphMemTrim((*gpus_)[static_cast<size_t>(gpu_)].device), "cuDeviceGraphMemTrim");
  keep(object);
}

void Worker::graph_nodes() {
  CUgraph graph = nullptr;
  if (!granted(cu.cuGraphCreate(&graph, 0), "cuGraphCreate")) return;
  CUDA_MEM_ALLOC_NODE_PARAMS params{};
  params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  params.poolProps.location.id = (*gpus_)[static_cast<size_t>(gpu_)].device;
  params.bytesize = pick_size();
  CUgraphNode alloc = nullptr;
  if (!granted(cu.cuGraphAddMemAllocNode(&alloc, graph, nullptr, 0, &params), "cuGraphAddMemAllocNode")) {
    return must(cu.cuGraphDestroy(graph), "cuGraphDestroy");
  }
  const bool freed_inside = rng_.one_in(2);
  CUgraphNode free_node = nullptr;
  if (freed_inside) {
    must(cu.cuGraphAddMemFreeNode(&free_node, graph, &alloc, 1, params.dptr), "cuGraphAddMemFreeNode");
  }
  run_graph(graph, params.dptr, freed_inside, pick_stream());
}

void Worker::graph_captured() {
  Object* found = find(Kind::kStream);
  if (found == nullptr) return stream();
  gpu_ = found->gpu;
  enter(found->context);
  auto on = reinterpret_cast<CUstream>(found->handle);
  must(cu.cuStreamBeginCapture(on, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "cuStreamBeginCapture");
  CUdeviceptr block = 0;
  const bool taken = granted(cu.cuMemAllocAsync(&block, pick_size(), on), "cuMemAllocAsync in a capture");
  const bool freed_inside = taken && rng_.one_in(2);
  if (freed_inside) must(cu.cuMemFreeAsync(block, on), "cuMemFreeAsync in a capture");
  CUgraph graph = nullptr;
  CUresult ended = cu.cuStreamEndCapture(on, &graph);
  if (!taken) {
    if (graph != nullptr) must(cu.cuGraphDestroy(graph), "cuGraphDestroy");
    return;
  }
  must(ended, "cuStreamEndCapture");
  run_graph(graph, block, freed_inside, on);
}

void Worker::pass_on() {
  Object object;
  if (rng_.one_in(2) && shared_->take(rng_, &object)) return keep(object);
  for (Kind kind : {Kind::kLinear, Kind::kAsync, Kind::kArray, Kind::kMapping, Kind::kHandle}) {
    if (rng_.one_in(2) || !take_object(kind, &object)) continue;
    if (object.context == (*gpus_)[static_cast<size_t>(object.gpu)].primary) {
      shared_->put(object);
    } else {
      keep(object);
    }
    return;
  }
}

void Worker::offer() {
  if (bazaar_->processes() < 2 || !bazaar_->open()) return;
  const auto others = static_cast<uint64_t>(bazaar_->processes() - 1);
  const int to = static_cast<int>((static_cast<uint64_t>(bazaar_->self()) + 1 + rng_.below(others)) % (others + 1));
  Offer offer{};
  if (Object* o = find(Kind::kHandle); o != nullptr && o->shareable && rng_.one_in(2)) {
    offer.kind = 2;
    offer.gpu = o->gpu;
    offer.size = o->size;
    int fd = -1;
    must(cu.cuMemExportToShareableHandle(&fd, o->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
         "cuMemExportToShareableHandle");
    bazaar_->send(to, offer, fd);
    close(fd);
    return;
  }
  Object* o = find(Kind::kLinear);
  if (o == nullptr) return;
  offer.kind = 1;
  offer.gpu = o->gpu;
  offer.size = o->size;
  must(cu.cuIpcGetMemHandle(&offer.ipc, o->handle), "cuIpcGetMemHandle");
  bazaar_->send(to, offer, -1);
}

void Worker::accept() {
  Offer offer;
  int fd = -1;
  if (!bazaar_->receive(&offer, &fd)) return;
  gpu_ = offer.gpu;
  enter((*gpus_)[static_cast<size_t>(gpu_)].primary);
  if (offer.kind == 2) {
    CUmemGenericAllocationHandle handle = 0;
    void* as_pointer = reinterpret_cast<void*>(static_cast<uintptr_t>(fd));
    CUresult status = cu.cuMemImportFromShareableHandle(&handle, as_pointer, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    close(fd);
    if (granted(status, "cuMemImportFromShareableHandle")) {
      Object object = made(Kind::kHandle, handle, offer.size);
      object.shareable = true;
      keep(object);
    }
    return;
  }
  CUdeviceptr p = 0;
  // The other side may have given it back, or died: any error is fine.
  if (cu.cuIpcOpenMemHandle(&p, offer.ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) == CUDA_SUCCESS) {
    keep(made(Kind::kIpc, p, offer.size));
  }
}

namespace {
void await(pid_t child, const char* what) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) fail(what, std::strerror(errno));
  }
  if (status != 0) fail(what, "the child did not end with status 0");
}
}  // namespace

// A driver does not survive fork: whatever the child is told, nobody crashes and the parent's memory stays its own.
void Worker::fork_child() {
  pid_t child = fork();
  if (child < 0) return;
  if (child == 0) {
    alarm(20);
    CUdeviceptr p = 0;
    size_t free_bytes;
    size_t total;
    (void)cu.cuMemGetInfo(&free_bytes, &total);
    if (cu.cuMemAlloc(&p, pick_size()) == CUDA_SUCCESS) (void)cu.cuMemFree(p);
    if (Object* o = find(Kind::kLinear)) (void)cu.cuMemFree(o->handle);
    _exit(0);
  }
  await(child, "a forked child");
}

// A new program image, with a driver of its own.
void Worker::spawn_child() {
  std::string seed = std::to_string(rng_.next() >> 1);
  char program[] = "chaos";
  char solo[] = "--ops=12";
  std::string seed_arg = "--seed=" + seed;
  char patience[] = "--patience-ms=50";
  char* argv[] = {program, solo, patience, seed_arg.data(), nullptr};
  pid_t child = -1;
  if (rng_.one_in(2)) {
    if (posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, argv, environ) != 0) return;
  } else {
    child = fork();
    if (child < 0) return;
    if (child == 0) {
      execv("/proc/self/exe", argv);
      _exit(127);
    }
  }
  await(child, "a program started by a chaos process");
}

// Lets go of a primary context and takes it again.
void Worker::primary_cycle() {
  if (in_step_) return;
  drop_all();
  ignore_offers();
  Gpu& gpu = pick_gpu();
  enter(nullptr);
  must(cu.cuDevicePrimaryCtxRelease(gpu.device), "cuDevicePrimaryCtxRelease");
  while (!granted(cu.cuDevicePrimaryCtxRetain(&gpu.primary, gpu.device), "cuDevicePrimaryCtxRetain")) usleep(2000);
  enter(gpu.primary);
}

}  // namespace chaos
