// A tiny CUDA program: takes memory on one GPU, says what it got, and holds it if asked. Used by tests and the demo.
//   alloc 512Mi [--hold [SECONDS]]            one block; exit status 1 if it is refused
//   alloc --until-refused [--chunk 16Mi]      blocks of one size until the driver refuses; exit status 0
//   alloc --until-refused --exact             then halves the block until not even 512 bytes are left
// More: --gpu N, --info (what cuMemGetInfo says), --touch (write every page), --retry SECONDS (ask again on refusal),
// --library PATH (the dlopen variant: which libcuda to open).
// Output, one fact a line: "context", "granted BYTES", "refused BYTES", "total BYTES", "free BYTES of BYTES",
// "holding". Standard output is flushed after each line.
#include <cuda.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct Options {
  uint64_t size;
  uint64_t chunk;
  int until_refused;
  int exact;
  int hold;  // -1: for ever
  int holds;
  int gpu;
  int info;
  int touch;
  double retry;
  const char* library;
};

static struct Driver {
  CUresult (*init)(unsigned);
  CUresult (*device_get)(CUdevice*, int);
  CUresult (*retain)(CUcontext*, CUdevice);
  CUresult (*set_current)(CUcontext);
  CUresult (*mem_alloc)(CUdeviceptr*, size_t);
  CUresult (*mem_info)(size_t*, size_t*);
  CUresult (*memset8)(CUdeviceptr, unsigned char, size_t);
  CUresult (*error_name)(CUresult, const char**);
} cu;

#ifdef ALLOC_DLOPEN
static void* need(void* library, const char* name) {
  void* symbol = dlsym(library, name);
  if (symbol == NULL) {
    fprintf(stderr, "alloc: %s\n", dlerror());
    exit(3);
  }
  return symbol;
}
static void load(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    fprintf(stderr, "alloc: %s\n", dlerror());
    exit(3);
  }
  *(void**)&cu.init = need(library, "cuInit");
  *(void**)&cu.device_get = need(library, "cuDeviceGet");
  *(void**)&cu.retain = need(library, "cuDevicePrimaryCtxRetain");
  *(void**)&cu.set_current = need(library, "cuCtxSetCurrent");
  *(void**)&cu.mem_alloc = need(library, "cuMemAlloc_v2");
  *(void**)&cu.mem_info = need(library, "cuMemGetInfo_v2");
  *(void**)&cu.memset8 = need(library, "cuMemsetD8_v2");
  *(void**)&cu.error_name = need(library, "cuGetErrorName");
}
#else
static void load(const char* path) {
  (void)path;
  cu = (struct Driver){cuInit,     cuDeviceGet,   cuDevicePrimaryCtxRetain, cuCtxSetCurrent, cuMemAlloc, cuMemGetInfo,
                       cuMemsetD8, cuGetErrorName};
}
#endif

static const char* name_of(CUresult status) {
  const char* name = NULL;
  return cu.error_name(status, &name) == CUDA_SUCCESS && name != NULL ? name : "an unknown error";
}

static void check(CUresult status, const char* what) {
  if (status == CUDA_SUCCESS) return;
  fprintf(stderr, "alloc: %s: %s\n", what, name_of(status));
  exit(status == CUDA_ERROR_OUT_OF_MEMORY ? 1 : 3);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

// True if granted; any failure but a refusal ends the program.
static int take(const struct Options* o, uint64_t bytes) {
  CUdeviceptr block = 0;
  double give_up = now() + o->retry;
  for (;;) {
    CUresult status = cu.mem_alloc(&block, bytes);
    if (status == CUDA_SUCCESS) break;
    if (status != CUDA_ERROR_OUT_OF_MEMORY) check(status, "cuMemAlloc");
    if (now() >= give_up) return 0;
    usleep(20000);
  }
  if (o->touch) check(cu.memset8(block, 1, bytes), "cuMemsetD8");
  return 1;
}

static uint64_t take_all(const struct Options* o) {
  uint64_t total = 0;
  uint64_t chunk = o->chunk;
  for (;;) {
    while (take(o, chunk)) total += chunk;
    printf("refused %llu\n", (unsigned long long)chunk);
    if (!o->exact || chunk <= 512) return total;
    chunk /= 2;
  }
}

static void print_info(void) {
  size_t free_bytes = 0;
  size_t total = 0;
  check(cu.mem_info(&free_bytes, &total), "cuMemGetInfo");
  printf("free %zu of %zu\n", free_bytes, total);
}

static uint64_t size_of(const char* text) {
  char* end = NULL;
  uint64_t n = strtoull(text, &end, 10);
  if (strcmp(end, "Ki") == 0) return n << 10;
  if (strcmp(end, "Mi") == 0) return n << 20;
  if (strcmp(end, "Gi") == 0) return n << 30;
  if (*end != 0 || end == text || n == 0) {
    fprintf(stderr, "alloc: '%s' is no size: digits and Ki, Mi or Gi\n", text);
    exit(2);
  }
  return n;
}

static const char* value(int argc, char** argv, int* i) {
  if (*i + 1 >= argc) {
    fprintf(stderr, "alloc: %s needs a value\n", argv[*i]);
    exit(2);
  }
  return argv[++*i];
}

static struct Options parse(int argc, char** argv) {
  struct Options o = {.chunk = 16 << 20, .library = "libcuda.so.1"};
  for (int i = 1; i < argc; ++i) {
    const char* a = argv[i];
    if (strcmp(a, "--until-refused") == 0) {
      o.until_refused = 1;
    } else if (strcmp(a, "--exact") == 0) {
      o.exact = 1;
    } else if (strcmp(a, "--info") == 0) {
      o.info = 1;
    } else if (strcmp(a, "--touch") == 0) {
      o.touch = 1;
    } else if (strcmp(a, "--hold") == 0) {
      o.holds = 1;
      o.hold = i + 1 < argc && argv[i + 1][0] >= '0' && argv[i + 1][0] <= '9' ? atoi(argv[++i]) : -1;
    } else if (strcmp(a, "--chunk") == 0) {
      o.chunk = size_of(value(argc, argv, &i));
    } else if (strcmp(a, "--gpu") == 0) {
      o.gpu = atoi(value(argc, argv, &i));
    } else if (strcmp(a, "--retry") == 0) {
      o.retry = atof(value(argc, argv, &i));
    } else if (strcmp(a, "--library") == 0) {
      o.library = value(argc, argv, &i);
    } else {
      o.size = size_of(a);
    }
  }
  return o;
}

int main(int argc, char** argv) {
  struct Options o = parse(argc, argv);
  setvbuf(stdout, NULL, _IOLBF, 0);
  load(o.library);
  CUdevice device;
  CUcontext context;
  check(cu.init(0), "cuInit");
  check(cu.device_get(&device, o.gpu), "cuDeviceGet");
  check(cu.retain(&context, device), "cuDevicePrimaryCtxRetain");
  check(cu.set_current(context), "cuCtxSetCurrent");
  puts("context");
  if (o.info) print_info();
  uint64_t total = 0;
  int status = 0;
  if (o.size != 0) {
    if (take(&o, o.size)) {
      printf("granted %llu\n", (unsigned long long)o.size);
      total += o.size;
    } else {
      printf("refused %llu\n", (unsigned long long)o.size);
      status = 1;
    }
  }
  if (o.until_refused) {
    uint64_t more = take_all(&o);
    printf("granted %llu\n", (unsigned long long)more);
    total += more;
  }
  printf("total %llu\n", (unsigned long long)total);
  if (o.info) print_info();
  if (o.holds && status == 0) {
    puts("holding");
    if (o.hold < 0) {
      for (;;) pause();
    }
    sleep((unsigned)o.hold);
  }
  return status;
}
