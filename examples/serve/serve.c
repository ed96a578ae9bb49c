// A server in miniature: takes memory for its weights at start, then scratch memory for each request, and says "busy"
// where there is none, instead of falling over.
//   serve WEIGHTS_MIB      requests are lines on standard input: the MiB of scratch memory that each needs
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>

static void must(CUresult status, const char* what) {
  if (status == CUDA_SUCCESS) return;
  const char* name = "an unknown error";
  cuGetErrorName(status, &name);
  fprintf(stderr, "serve: %s: %s\n", what, name);
  exit(1);
}

int main(int argc, char** argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: serve WEIGHTS_MIB, then requests on standard input\n");
    return 2;
  }
  CUdevice gpu;
  CUcontext context;
  CUdeviceptr weights;
  must(cuInit(0), "cuInit");
  must(cuDeviceGet(&gpu, 0), "cuDeviceGet");
  must(cuDevicePrimaryCtxRetain(&context, gpu), "a context");
  must(cuCtxSetCurrent(context), "a context");
  must(cuMemAlloc(&weights, strtoull(argv[1], NULL, 10) << 20), "the weights");
  setvbuf(stdout, NULL, _IOLBF, 0);
  puts("ready");
  char line[64];
  while (fgets(line, sizeof line, stdin) != NULL) {
    CUdeviceptr scratch;
    CUresult status = cuMemAlloc(&scratch, strtoull(line, NULL, 10) << 20);
    if (status == CUDA_ERROR_OUT_OF_MEMORY) {
      puts("busy");
      continue;
    }
    must(status, "scratch memory");
    must(cuMemsetD8(scratch, 0, 4096), "the work");
    must(cuMemFree(scratch), "giving back");
    puts("done");
  }
  return 0;
}
