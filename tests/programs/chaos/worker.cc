#include "worker.h"

#include <algorithm>
#include <utility>

namespace chaos {

namespace {
constexpr size_t kMostObjects = 48;  // of one thread; beyond, it gives back more than it takes
}

void Shared::put(const Object& object) {
  std::lock_guard lock(mutex_);
  objects_.push_back(object);
}
bool Shared::take(Rng& rng, Object* out) {
  std::lock_guard lock(mutex_);
  if (objects_.empty()) return false;
  std::swap(objects_[rng.below(objects_.size())], objects_.back());
  *out = objects_.back();
  objects_.pop_back();
  return true;
}
std::vector<Object> Shared::take_all() {
  std::lock_guard lock(mutex_);
  return std::exchange(objects_, {});
}

Worker::Worker(uint64_t seed, std::vector<Gpu>* gpus, Shared* shared, Bazaar* bazaar, bool single, bool in_step)
    : rng_(seed), gpus_(gpus), shared_(shared), bazaar_(bazaar), single_(single), in_step_(in_step) {}

void Worker::forget_current() {
  must(cu.cuCtxSetCurrent((*gpus_)[0].primary), "cuCtxSetCurrent");
  current_ = (*gpus_)[0].primary;
  gpu_ = 0;
}

void Worker::step() {
  struct Choice {
    void (Worker::*op)();
    unsigned weight;
    bool single_only;
  };
  static constexpr Choice kChoices[] = {
      {&Worker::linear, 14, false},        {&Worker::pitched, 4, false},      {&Worker::managed, 3, false},
      {&Worker::array, 4, false},          {&Worker::mipmap, 2, false},       {&Worker::host, 1, false},
      {&Worker::async, 12, false},         {&Worker::pool, 2, false},         {&Worker::pool_setting, 3, false},
      {&Worker::vmm_create, 6, false},     {&Worker::vmm_map, 8, false},      {&Worker::vmm_retain, 2, false},
      {&Worker::module, 3, false},         {&Worker::stream, 3, false},       {&Worker::graph_nodes, 4, false},
      {&Worker::graph_captured, 4, false}, {&Worker::context, 1, false},      {&Worker::context_limit, 1, false},
      {&Worker::until_refused, 2, false},  {&Worker::info, 3, false},         {&Worker::offer, 4, false},
      {&Worker::accept, 4, false},         {&Worker::pass_on, 4, false},      {&Worker::release_some, 20, false},
      {&Worker::fork_child, 1, true},      {&Worker::primary_cycle, 1, true},
  };
  unsigned sum = 0;
  for (const Choice& c : kChoices) sum += c.single_only && !single_ ? 0 : c.weight;
  if (rng_.one_in(150)) return spawn_child();
  if (objects_.size() > kMostObjects) release_some();
  if (rng_.one_in(6)) enter(pick_gpu().primary);
  uint64_t at = rng_.below(sum);
  for (const Choice& c : kChoices) {
    unsigned weight = c.single_only && !single_ ? 0 : c.weight;
    if (at < weight) return (this->*c.op)();
    at -= weight;
  }
}

Gpu& Worker::pick_gpu() {
  gpu_ = static_cast<int>(rng_.below(gpus_->size()));
  return (*gpus_)[static_cast<size_t>(gpu_)];
}

void Worker::enter(CUcontext context) {
  if (context == current_) return;
  must(cu.cuCtxSetCurrent(context), "cuCtxSetCurrent");
  current_ = context;
}

uint64_t Worker::pick_size() {
  uint64_t total = (*gpus_)[static_cast<size_t>(gpu_)].total;
  return rng_.size(rng_.one_in(8) ? total : total / 8);
}

Object Worker::made(Kind kind, uint64_t handle, uint64_t size) const {
  return Object{kind, gpu_, current_, handle, size, 0, 0, false};
}
void Worker::keep(const Object& object) { objects_.push_back(object); }

Object* Worker::find(Kind kind) {
  if (objects_.empty()) return nullptr;
  size_t start = rng_.below(objects_.size());
  for (size_t i = 0; i < objects_.size(); ++i) {
    Object& o = objects_[(start + i) % objects_.size()];
    if (o.kind == kind) return &o;
  }
  return nullptr;
}
bool Worker::take_object(Kind kind, Object* out) {
  Object* found = find(kind);
  if (found == nullptr) return false;
  *out = *found;
  *found = objects_.back();
  objects_.pop_back();
  return true;
}

CUstream Worker::pick_stream() {
  Object* o = rng_.one_in(3) ? nullptr : find(Kind::kStream);
  return o != nullptr && o->context == current_ ? reinterpret_cast<CUstream>(o->handle) : nullptr;
}

// The first bytes of a block hold a number of its own, so that two blocks at one place are found out.
void Worker::write_tag(Object* object) {
  if (object->size < sizeof object->tag) return;
  object->tag = rng_.next() | 1;
  must(cu.cuMemcpyHtoD(object->handle, &object->tag, sizeof object->tag), "cuMemcpyHtoD");
}
void Worker::check_tag(const Object& object) {
  if (object.tag == 0) return;
  uint64_t seen = 0;
  must(cu.cuMemcpyDtoH(&seen, object.handle, sizeof seen), "cuMemcpyDtoH");
  if (seen != object.tag) fail("data", "a block does not hold what was written to it");
}

void Worker::release_some() {
  size_t n = 1 + rng_.below(4);
  if (rng_.one_in(12)) n = objects_.size();
  for (size_t i = 0; i < n && !objects_.empty(); ++i) {
    std::swap(objects_[rng_.below(objects_.size())], objects_.back());
    Object object = objects_.back();
    objects_.pop_back();
    release(object);
  }
}

void Worker::release_linear(const Object& object) {
  check_tag(object);
  // Any free takes any kind of stream-ordered or plain block.
  bool in_stream = object.kind == Kind::kAsync ? !rng_.one_in(4) : object.kind == Kind::kLinear && rng_.one_in(8);
  if (in_stream) {
    must(cu.cuMemFreeAsync(object.handle, pick_stream()), "cuMemFreeAsync");
  } else {
    must(cu.cuMemFree(object.handle), "cuMemFree");
  }
}

void Worker::release_graph(const Object& object) {
  if (object.second != 0) {
    must(cu.cuGraphExecDestroy(reinterpret_cast<CUgraphExec>(object.second)), "cuGraphExecDestroy");
  }
  must(cu.cuGraphDestroy(reinterpret_cast<CUgraph>(object.handle)), "cuGraphDestroy");
}

// A context takes its plain blocks, arrays, modules and streams with it; half the time they are left to it.
void Worker::release_context(const Object& object) {
  auto dead = reinterpret_cast<CUcontext>(object.handle);
  bool leave = rng_.one_in(2);
  std::vector<Object> rest;
  for (const Object& o : std::exchange(objects_, {})) {
    if (o.context != dead) {
      rest.push_back(o);
      continue;
    }
    bool goes_along = o.kind == Kind::kLinear || o.kind == Kind::kArray || o.kind == Kind::kMipmap ||
                      o.kind == Kind::kModule || o.kind == Kind::kStream;
    if (!leave || !goes_along) release(o);
  }
  objects_ = std::move(rest);
  enter((*gpus_)[static_cast<size_t>(object.gpu)].primary);
  must(cu.cuCtxDestroy(dead), "cuCtxDestroy");
}

void Worker::release(const Object& object) {
  gpu_ = object.gpu;
  if (object.kind == Kind::kContext) return release_context(object);
  enter(object.context);
  switch (object.kind) {
    case Kind::kLinear:
    case Kind::kManaged:
    case Kind::kAsync:
      return release_linear(object);
    case Kind::kArray:
      return must(cu.cuArrayDestroy(reinterpret_cast<CUarray>(object.handle)), "cuArrayDestroy");
    case Kind::kMipmap:
      return must(cu.cuMipmappedArrayDestroy(reinterpret_cast<CUmipmappedArray>(object.handle)),
                  "cuMipmappedArrayDestroy");
    case Kind::kPool:
      return must(cu.cuMemPoolDestroy(reinterpret_cast<CUmemoryPool>(object.handle)), "cuMemPoolDestroy");
    case Kind::kHandle:
      return must(cu.cuMemRelease(object.handle), "cuMemRelease");
    case Kind::kMapping:
      must(cu.cuMemUnmap(object.handle, object.size), "cuMemUnmap");
      return must(cu.cuMemAddressFree(object.handle, object.size), "cuMemAddressFree");
    case Kind::kModule:
      return must(cu.cuModuleUnload(reinterpret_cast<CUmodule>(object.handle)), "cuModuleUnload");
    case Kind::kStream:
      return must(cu.cuStreamDestroy(reinterpret_cast<CUstream>(object.handle)), "cuStreamDestroy");
    case Kind::kGraph:
      return release_graph(object);
    case Kind::kIpc:
      return must(cu.cuIpcCloseMemHandle(object.handle), "cuIpcCloseMemHandle");
    case Kind::kHost:
      return must(cu.cuMemFreeHost(reinterpret_cast<void*>(object.handle)), "cuMemFreeHost");
    case Kind::kContext:
      return;
  }
}

void Worker::drop_all() {
  for (const Object& o : shared_->take_all()) keep(o);
  while (!objects_.empty()) {
    std::swap(objects_[rng_.below(objects_.size())], objects_.back());
    Object object = objects_.back();
    objects_.pop_back();
    release(object);
  }
  for (Gpu& gpu : *gpus_) {
    enter(gpu.primary);
    must(cu.cuCtxSynchronize(), "cuCtxSynchronize");
  }
}

void Worker::ignore_offers() { bazaar_->drain(bazaar_->self()); }

void Worker::trim() {
  for (Gpu& gpu : *gpus_) {
    enter(gpu.primary);
    CUmemoryPool pool = nullptr;
    cuuint64_t nothing = 0;
    must(cu.cuDeviceGetDefaultMemPool(&pool, gpu.device), "cuDeviceGetDefaultMemPool");
    must(cu.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &nothing), "cuMemPoolSetAttribute");
    must(cu.cuMemPoolTrimTo(pool, 0), "cuMemPoolTrimTo");
    must(cu.cuDeviceGraphMemTrim(gpu.device), "cuDeviceGraphMemTrim");
  }
}

}  // namespace chaos
