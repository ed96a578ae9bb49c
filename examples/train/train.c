// A training loop in miniature that looks for the largest batch its budget holds: it doubles the batch while the memory
// is granted, and halves the step once it is refused.
//   train SAMPLE_MIB STEPS
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>

static void must(CUresult status, const char* what) {
  if (status == CUDA_SUCCESS) return;
  const char* name = "an unknown error";
  cuGetErrorName(status, &name);
  fprintf(stderr, "train: %s: %s\n", what, name);
  exit(1);
}

// One step over a batch: 1 if the memory was granted.
static int step(size_t batch, size_t sample) {
  CUdeviceptr activations;
  CUresult status = cuMemAlloc(&activations, batch * sample);
  if (status == CUDA_ERROR_OUT_OF_MEMORY) return 0;
  must(status, "activations");
  must(cuMemsetD8(activations, 0, 4096), "the step");
  must(cuMemFree(activations), "giving back");
  return 1;
}

int main(int argc, char** argv) {
  size_t sample = argc == 3 ? (size_t)strtoull(argv[1], NULL, 10) << 20 : 0;
  long steps = argc == 3 ? strtol(argv[2], NULL, 10) : 0;
  if (sample == 0 || steps <= 0) {
    fprintf(stderr, "usage: train SAMPLE_MIB STEPS\n");
    return 2;
  }
  CUdevice gpu;
  CUcontext context;
  size_t free_bytes = 0;
  size_t total = 0;
  must(cuInit(0), "cuInit");
  must(cuDeviceGet(&gpu, 0), "cuDeviceGet");
  must(cuDevicePrimaryCtxRetain(&context, gpu), "a context");
  must(cuCtxSetCurrent(context), "a context");
  must(cuMemGetInfo(&free_bytes, &total), "cuMemGetInfo");
  printf("the GPU has %zu MiB, %zu of them free\n", total >> 20, free_bytes >> 20);
  size_t batch = 1;
  size_t more = 1;
  int refused = 0;
  for (long i = 0; i < steps; ++i) {
    if (step(batch + more, sample)) {
      batch += more;
      more = refused ? (more + 1) / 2 : more * 2;
    } else {
      refused = 1;
      more /= 2;
      if (more == 0) break;
    }
  }
  printf("batch %zu\n", batch);
  return step(batch, sample) ? 0 : 1;
}
