// What test programs are linked against: the names and the soname of the driver, never loaded at run time.
#define STUB(name) \
  int name(void);  \
  int name(void) { return 999; }
STUB(cuInit)
STUB(cuDeviceGet)
STUB(cuDevicePrimaryCtxRetain)
STUB(cuCtxSetCurrent)
STUB(cuMemAlloc_v2)
STUB(cuMemGetInfo_v2)
STUB(cuMemsetD8_v2)
STUB(cuMemFree_v2)
STUB(cuGetErrorName)
