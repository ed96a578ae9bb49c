/* The table of the driver's entry points, made by hack/gen_sim_stubs.py. Plain C: the stubs are compiled without
 * cuda.h. */
#pragma once
#ifdef __cplusplus
extern "C" {
#endif

struct kvram_sim_entry {
  const char* name; /* "cuMemAlloc_v2" */
  const char* base; /* "cuMemAlloc" */
  int per_thread;   /* 1: works on the thread's own default stream (_ptsz, _ptds) */
  int cuda_version; /* that brought this form: 3020 */
  int form;         /* 1 for the plain name, 2 for _v2 */
  void* function;   /* the body, or the stub */
  void* stub;
};
extern const struct kvram_sim_entry kvram_sim_entries[];
extern const unsigned kvram_sim_entry_count;

struct kvram_sim_error {
  int code;         /* a CUresult */
  const char* name; /* "CUDA_ERROR_OUT_OF_MEMORY" */
  const char* text; /* "out of memory" */
};
extern const struct kvram_sim_error kvram_sim_errors[];
extern const unsigned kvram_sim_error_count;

#ifdef __cplusplus
}
#endif
