/* What a driver call costs without and with the guard, in one process and in turns: two copies of the null driver are
 * loaded, one of them behind the guard. Prints JSON: per call and library, nanoseconds per call as the median and the
 * 99th percentile of the batches of each repetition. calls --direct LIBCUDA --guard LIBCUDA [--repeat N] [--batches N]
 * [--core N] [--live N] It must run in a budget of the daemon that the guard asks (bench/run sees to that). */
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { kMaxRepeat = 101, kMaxBatches = 4000, kMaxLive = 200000, kSides = 2 };
static const size_t kBlock = 1 << 20;

struct Options {
  const char* path[kSides]; /* direct, guard */
  int repeat;
  int batches;
  int core;
  int live;
};

static struct Driver {
  CUresult (*init)(unsigned);
  CUresult (*device_get)(CUdevice*, int);
  CUresult (*retain)(CUcontext*, CUdevice);
  CUresult (*set_current)(CUcontext);
  CUresult (*mem_alloc)(CUdeviceptr*, size_t);
  CUresult (*mem_free)(CUdeviceptr);
  CUresult (*mem_info)(size_t*, size_t*);
  CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void**,
                     void**);
  CUresult (*get_proc)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);
  CUcontext context;
} drivers[kSides];

static struct Live {
  CUdeviceptr* blocks;
  int count;
} lives[kSides];
static uint64_t random_state = 0x9e3779b97f4a7c15;

static void die(const char* what, const char* why) {
  fprintf(stderr, "calls: %s: %s\n", what, why);
  exit(3);
}

static void check(CUresult status, const char* what) {
  if (status == CUDA_SUCCESS) return;
  fprintf(stderr, "calls: %s: CUDA error %d\n", what, (int)status);
  exit(3);
}

static void* need(void* library, const char* name) {
  void* symbol = dlsym(library, name);
  if (symbol == NULL) die("a call is missing", dlerror());
  return symbol;
}

static void load(struct Driver* d, const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) die("cannot load", dlerror());
  *(void**)&d->init = need(library, "cuInit");
  *(void**)&d->device_get = need(library, "cuDeviceGet");
  *(void**)&d->retain = need(library, "cuDevicePrimaryCtxRetain");
  *(void**)&d->set_current = need(library, "cuCtxSetCurrent");
  *(void**)&d->mem_alloc = need(library, "cuMemAlloc_v2");
  *(void**)&d->mem_free = need(library, "cuMemFree_v2");
  *(void**)&d->mem_info = need(library, "cuMemGetInfo_v2");
  *(void**)&d->launch = need(library, "cuLaunchKernel");
  *(void**)&d->get_proc = need(library, "cuGetProcAddress_v2");
  CUdevice device;
  check(d->init(0), "cuInit");
  check(d->device_get(&device, 0), "cuDeviceGet");
  check(d->retain(&d->context, device), "cuDevicePrimaryCtxRetain");
  check(d->set_current(d->context), "cuCtxSetCurrent");
}

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* One batch of each kind of call; the sum of the statuses shows that every one succeeded. */

static unsigned run_launch(const struct Driver* d, int n) {
  unsigned sum = 0;
  void* arguments[1] = {NULL};
  for (int i = 0; i < n; ++i)
    sum |= (unsigned)d->launch((CUfunction)d->context, 1, 1, 1, 32, 1, 1, 0, NULL, arguments, NULL);
  return sum;
}

static unsigned run_pair(const struct Driver* d, int n) {
  unsigned sum = 0;
  for (int i = 0; i < n; ++i) {
    CUdeviceptr block;
    sum |= (unsigned)d->mem_alloc(&block, kBlock);
    sum |= (unsigned)d->mem_free(block);
  }
  return sum;
}

/* Frees a block of the live ones, chosen by chance, and takes another in its place. */
static unsigned run_replace(const struct Driver* d, int n) {
  unsigned sum = 0;
  const struct Live* live = &lives[d - drivers];
  for (int i = 0; i < n; ++i) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    CUdeviceptr* block = &live->blocks[random_state % (uint64_t)live->count];
    sum |= (unsigned)d->mem_free(*block);
    sum |= (unsigned)d->mem_alloc(block, kBlock);
  }
  return sum;
}

static unsigned run_info(const struct Driver* d, int n) {
  unsigned sum = 0;
  size_t free_bytes;
  size_t total;
  for (int i = 0; i < n; ++i) sum |= (unsigned)d->mem_info(&free_bytes, &total);
  return sum;
}

static unsigned get_proc(const struct Driver* d, int n, const char* name) {
  unsigned sum = 0;
  void* found;
  CUdriverProcAddressQueryResult how;
  for (int i = 0; i < n; ++i) sum |= (unsigned)d->get_proc(name, &found, 13000, 0, &how);
  return sum;
}
static unsigned run_proc_wrapped(const struct Driver* d, int n) { return get_proc(d, n, "cuMemAlloc"); }
static unsigned run_proc_other(const struct Driver* d, int n) { return get_proc(d, n, "cuEventRecord"); }

struct Call {
  const char* name;
  unsigned (*run)(const struct Driver*, int);
  int batch; /* calls between two looks at the clock */
  int live;  /* with the live blocks allocated */
};
static const struct Call kCalls[] = {
    {"launch", run_launch, 2000, 0},
    {"pair", run_pair, 200, 0},
    {"info", run_info, 200, 0},
    {"proc_wrapped", run_proc_wrapped, 100, 0},
    {"proc_other", run_proc_other, 100, 0},
    {"pair_live", run_pair, 200, 1},
    {"replace_live", run_replace, 200, 1},
};
enum { kCallCount = sizeof kCalls / sizeof kCalls[0] };

static double medians[kCallCount][kSides][kMaxRepeat];
static double tails[kCallCount][kSides][kMaxRepeat];
static double samples[kMaxBatches];

static int ascending(const void* a, const void* b) {
  double x = *(const double*)a;
  double y = *(const double*)b;
  return (x > y) - (x < y);
}

static void measure(int call, int side, int repetition, int batches) {
  const struct Call* c = &kCalls[call];
  unsigned sum = c->run(&drivers[side], c->batch); /* warm */
  for (int b = 0; b < batches; ++b) {
    uint64_t start = now_ns();
    sum |= c->run(&drivers[side], c->batch);
    samples[b] = (double)(now_ns() - start) / c->batch;
  }
  if (sum != 0) die(c->name, "a call failed while it was measured");
  if (repetition < 0) return;
  qsort(samples, (size_t)batches, sizeof samples[0], ascending);
  medians[call][side][repetition] = samples[batches / 2];
  tails[call][side][repetition] = samples[(int)(batches * 0.99)];
}

static void hold(int side, int n) {
  struct Live* live = &lives[side];
  for (live->count = 0; live->count < n; ++live->count) {
    check(drivers[side].mem_alloc(&live->blocks[live->count], kBlock), "cuMemAlloc of a live block");
  }
}

static void drop(int side) {
  struct Live* live = &lives[side];
  while (live->count > 0) check(drivers[side].mem_free(live->blocks[--live->count]), "cuMemFree of a live block");
}

/* One repetition of everything. The sides take turns call by call, so that a machine that slows down slows both; which
 * goes first alternates. */
static void repeat_once(const struct Options* o, int repetition) {
  for (int live = 0; live <= 1; ++live) {
    for (int side = 0; live && side < kSides; ++side) hold(side, o->live);
    for (int c = 0; c < kCallCount; ++c) {
      for (int i = 0; kCalls[c].live == live && i < kSides; ++i)
        measure(c, (i + repetition) & 1, repetition, o->batches);
    }
    for (int side = 0; live && side < kSides; ++side) drop(side);
  }
}

static void print_list(const char* name, const double* values, int n, const char* end) {
  printf("\"%s\": [", name);
  for (int i = 0; i < n; ++i) printf("%s%.3f", i ? ", " : "", values[i]);
  printf("]%s", end);
}

static void print_all(const struct Options* o) {
  printf("{\"repeat\": %d, \"batches\": %d, \"core\": %d, \"live\": %d, \"calls\": {", o->repeat, o->batches, o->core,
         o->live);
  for (int c = 0; c < kCallCount; ++c) {
    printf("%s\n  \"%s\": {\"batch\": %d, ", c ? "," : "", kCalls[c].name, kCalls[c].batch);
    print_list("direct_median", medians[c][0], o->repeat, ", ");
    print_list("direct_p99", tails[c][0], o->repeat, ", ");
    print_list("guard_median", medians[c][1], o->repeat, ", ");
    print_list("guard_p99", tails[c][1], o->repeat, "}");
  }
  printf("\n}}\n");
}

/* The last core that this process may use: interrupts like the first. */
static int pin(int core) {
  cpu_set_t set;
  if (core < 0) {
    if (sched_getaffinity(0, sizeof set, &set) != 0) die("sched_getaffinity", "failed");
    for (core = CPU_SETSIZE - 1; core > 0 && !CPU_ISSET(core, &set); --core) {
    }
  }
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) die("cannot stay on that core", "sched_setaffinity failed");
  return core;
}

static int number(const char* name, const char* text, int low, int high) {
  char* end = NULL;
  long n = strtol(text, &end, 10);
  if (end == text || *end != 0 || n < low || n > high) die(name, "not a number in range");
  return (int)n;
}

static struct Options parse(int argc, char** argv) {
  struct Options o = {.repeat = 15, .batches = 400, .core = -1, .live = 10000};
  for (int i = 1; i < argc; i += 2) {
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    if (strcmp(argv[i], "--direct") == 0) {
      o.path[0] = value;
    } else if (strcmp(argv[i], "--guard") == 0) {
      o.path[1] = value;
    } else if (strcmp(argv[i], "--repeat") == 0) {
      o.repeat = number(argv[i], value, 1, kMaxRepeat);
    } else if (strcmp(argv[i], "--batches") == 0) {
      o.batches = number(argv[i], value, 10, kMaxBatches);
    } else if (strcmp(argv[i], "--core") == 0) {
      o.core = number(argv[i], value, 0, CPU_SETSIZE - 1);
    } else if (strcmp(argv[i], "--live") == 0) {
      o.live = number(argv[i], value, 1, kMaxLive);
    } else {
      die("unknown option", argv[i]);
    }
  }
  if (o.path[0] == NULL || o.path[1] == NULL) die("--direct and --guard", "both libraries are needed");
  return o;
}

int main(int argc, char** argv) {
  struct Options o = parse(argc, argv);
  o.core = pin(o.core);
  for (int side = 0; side < kSides; ++side) {
    lives[side].blocks = calloc((size_t)o.live, sizeof(CUdeviceptr));
    if (lives[side].blocks == NULL) die("calloc", "no memory");
    load(&drivers[side], o.path[side]);
  }
  repeat_once(&o, -1); /* pages touched, leases filled */
  for (int r = 0; r < o.repeat; ++r) repeat_once(&o, r);
  print_all(&o);
  return 0;
}
