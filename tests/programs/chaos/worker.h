// One thread of a chaos process: takes and gives back GPU memory in every way the driver has, in random order.
#pragma once
#include <cstdint>
#include <mutex>
#include <vector>

#include "bazaar.h"
#include "driver.h"
#include "rng.h"

namespace chaos {

enum class Kind {
  kLinear,
  kManaged,
  kArray,
  kMipmap,
  kAsync,
  kPool,
  kHandle,
  kMapping,
  kModule,
  kStream,
  kGraph,
  kContext,
  kIpc,
  kHost
};

struct Object {
  Kind kind;
  int gpu;
  CUcontext context;  // that it was made in
  uint64_t handle;    // pointer or handle
  uint64_t size;      // bytes, where it has a size
  uint64_t second;    // pool of an async block, executable of a graph, node pointer of a graph
  uint64_t tag;       // what the first bytes of a linear block hold; 0: not written
  bool shareable;     // a VMM handle that can be exported
};

// What the threads of a process have in common. Thread-safe.
class Shared {
 public:
  void put(const Object& object);
  bool take(Rng& rng, Object* out);
  std::vector<Object> take_all();

 private:
  std::mutex mutex_;
  std::vector<Object> objects_;
};

struct Gpu {
  CUdevice device;
  CUcontext primary;
  uint64_t total;  // bytes, as cuDeviceTotalMem tells
};

class Worker {
 public:
  // `single`: the only thread of its process, so that it may fork and use the driver in the child, and may let go of
  // the primary context.
  Worker(uint64_t seed, std::vector<Gpu>* gpus, Shared* shared, Bazaar* bazaar, bool single, bool in_step);
  void step();
  // Another thread or hand may have made another context current.
  void forget_current();
  // Gives everything back, this thread's own and what the others left in `shared`.
  void drop_all();
  // Throws away what siblings offered.
  void ignore_offers();
  // The primary contexts' pools keep nothing after this.
  void trim();

 private:
  Gpu& pick_gpu();
  void enter(CUcontext context);
  CUstream pick_stream();
  uint64_t pick_size();
  Object made(Kind kind, uint64_t handle, uint64_t size = 0) const;
  void keep(const Object& object);
  bool take_object(Kind kind, Object* out);
  Object* find(Kind kind);
  void release(const Object& object);
  void release_linear(const Object& object);
  void release_graph(const Object& object);
  void release_context(const Object& object);
  void release_some();
  void write_tag(Object* object);
  void check_tag(const Object& object);

  void linear();
  void pitched();
  void managed();
  void array();
  void mipmap();
  void host();
  void async();
  void pool();
  void pool_setting();
  void vmm_create();
  void vmm_map();
  void vmm_retain();
  void module();
  void stream();
  void graph_nodes();
  void graph_captured();
  void run_graph(CUgraph graph, CUdeviceptr block, bool freed_inside, CUstream on);
  void context();
  void context_limit();
  void primary_cycle();
  void until_refused();
  void info();
  void offer();
  void accept();
  void fork_child();
  void spawn_child();
  void pass_on();

  Rng rng_;
  std::vector<Gpu>* gpus_;
  Shared* shared_;
  Bazaar* bazaar_;
  bool single_;
  bool in_step_;  // siblings wait for it while they hold memory: it may not wait for theirs
  int gpu_ = 0;
  CUcontext current_ = nullptr;
  std::vector<Object> objects_;
};

}  // namespace chaos
