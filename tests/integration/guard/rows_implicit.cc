// Entry points without a size.
#include <cstring>
#include <fstream>

#include "rows.h"

namespace kvram::test {
namespace {

struct Held {
  CUcontext context;
  CUgreenCtx green;
  CUmodule module;
  CUlibrary library;
  CUstream stream;
  CUgraph graph;
  CUgraphExec exec;
} h;

bool ok(CUresult r) { return r == CUDA_SUCCESS; }
bool back_to_primary() { return ok(CU(cuCtxSetCurrent)(Stand::get().primary())); }
const std::string& image() {
  static const std::string text = ptx({1, 10});
  return text;
}
const char* image_file() {
  static const std::string path = (Stand::get().folder() / "image.ptx").string();
  std::ofstream(path) << image();
  return path.c_str();
}

void contexts(std::vector<Row>& rows) {
  rows.push_back({"cuCtxCreate", [] { return CU(cuCtxCreate)(&h.context, 0, 0); },
                  [] { return ok(CU(cuCtxDestroy)(h.context)) && back_to_primary(); }});
  rows.push_back({"cuCtxCreate_v2", [] { return CU(cuCtxCreate_v2)(&h.context, 0, 0); },
                  [] {  // with all that was made in it
                    CUdeviceptr p = 0;
                    CUstream stream = nullptr;
                    return ok(CU(cuMemAlloc_v2)(&p, kMiB)) && ok(CU(cuStreamCreate)(&stream, 0)) &&
                           ok(CU(cuCtxDestroy_v2)(h.context)) && back_to_primary();
                  }});
  rows.push_back({"cuCtxCreate_v3", [] { return CU(cuCtxCreate_v3)(&h.context, nullptr, 0, 0, 0); },
                  [] { return ok(CU(cuCtxDestroy_v2)(h.context)) && back_to_primary(); }});
  rows.push_back({"cuCtxCreate_v4", [] { return CU(cuCtxCreate_v4)(&h.context, nullptr, 0, 0); },
                  [] {  // attached twice, detached twice where the driver knows that
                    CUcontext again = nullptr;
                    if (ok(CU(cuCtxAttach)(&again, 0)) && !ok(CU(cuCtxDetach)(again))) return false;
                    if (!ok(CU(cuCtxDetach)(h.context)) && !ok(CU(cuCtxDestroy_v2)(h.context))) return false;
                    return back_to_primary();
                  }});
}

CUresult make_green() {
  CUdevResource resource{};
  CUdevResourceDesc description = nullptr;
  if (!ok(CU(cuDeviceGetDevResource)(0, &resource, CU_DEV_RESOURCE_TYPE_SM))) return CUDA_ERROR_UNKNOWN;
  if (!ok(CU(cuDevResourceGenerateDesc)(&description, &resource, 1))) return CUDA_ERROR_UNKNOWN;
  return CU(cuGreenCtxCreate)(&h.green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM);
}

void green(std::vector<Row>& rows) {
  rows.push_back({"cuGreenCtxCreate", make_green, [] { return ok(CU(cuGreenCtxDestroy)(h.green)); }});
  rows.push_back({"cuGreenCtxStreamCreate",
                  [] {
                    CUresult r = make_green();
                    if (!ok(r)) return r;
                    r = CU(cuGreenCtxStreamCreate)(&h.stream, h.green, CU_STREAM_NON_BLOCKING, 0);
                    if (!ok(r)) CU(cuGreenCtxDestroy)(h.green);
                    return r;
                  },
                  [] { return ok(CU(cuStreamDestroy_v2)(h.stream)) && ok(CU(cuGreenCtxDestroy)(h.green)); }});
}

void modules(std::vector<Row>& rows) {
  const auto unload = [] { return ok(CU(cuModuleUnload)(h.module)); };
  const auto unload_library = [] { return ok(CU(cuLibraryUnload)(h.library)); };
  rows.push_back({"cuModuleLoad", [] { return CU(cuModuleLoad)(&h.module, image_file()); }, unload});
  rows.push_back({"cuModuleLoadData", [] { return CU(cuModuleLoadData)(&h.module, image().c_str()); }, unload});
  rows.push_back({"cuModuleLoadDataEx",
                  [] { return CU(cuModuleLoadDataEx)(&h.module, image().c_str(), 0, nullptr, nullptr); }, unload});
  rows.push_back(
      {"cuModuleLoadFatBinary", [] { return CU(cuModuleLoadFatBinary)(&h.module, image().c_str()); }, unload});
  rows.push_back(
      {"cuLibraryLoadData",
       [] { return CU(cuLibraryLoadData)(&h.library, image().c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0); },
       unload_library});
  rows.push_back(
      {"cuLibraryLoadFromFile",
       [] { return CU(cuLibraryLoadFromFile)(&h.library, image_file(), nullptr, nullptr, 0, nullptr, nullptr, 0); },
       unload_library});
}

void limits_and_streams(std::vector<Row>& rows) {
  const struct {
    CUlimit limit;
    size_t value;
    size_t usual;
  } limits[] = {{CU_LIMIT_MALLOC_HEAP_SIZE, 64 * kMiB, 8 * kMiB},
                {CU_LIMIT_PRINTF_FIFO_SIZE, 16 * kMiB, kMiB},
                {CU_LIMIT_STACK_SIZE, 2048, 1024}};
  for (const auto& l : limits) {
    rows.push_back({"cuCtxSetLimit", [l] { return CU(cuCtxSetLimit)(l.limit, l.value); },
                    [l] { return ok(CU(cuCtxSetLimit)(l.limit, l.usual)); }});
  }
  rows.push_back({"cuStreamCreate", [] { return CU(cuStreamCreate)(&h.stream, 0); },
                  [] { return ok(CU(cuStreamDestroy_v2)(h.stream)); }});
  rows.push_back({"cuStreamCreateWithPriority", [] { return CU(cuStreamCreateWithPriority)(&h.stream, 0, 0); },
                  [] { return ok(CU(cuStreamDestroy)(h.stream)); }});
}

template <typename Make>
Row exec_row(const char* name, Make make, bool modelled = true) {
  return {name,
          [make] {
            CUgraphNode node = nullptr;
            CU(cuGraphCreate)(&h.graph, 0);
            CU(cuGraphAddEmptyNode)(&node, h.graph, nullptr, 0);
            const CUresult r = make();
            if (!ok(r)) CU(cuGraphDestroy)(h.graph);
            return r;
          },
          [] { return ok(CU(cuGraphExecDestroy)(h.exec)) && ok(CU(cuGraphDestroy)(h.graph)); }, modelled};
}

void graphs(std::vector<Row>& rows) {
  rows.push_back(
      exec_row("cuGraphInstantiate", [] { return CU(cuGraphInstantiate)(&h.exec, h.graph, nullptr, nullptr, 0); }));
  rows.push_back(exec_row("cuGraphInstantiate_v2",
                          [] { return CU(cuGraphInstantiate_v2)(&h.exec, h.graph, nullptr, nullptr, 0); }));
  rows.push_back(
      exec_row("cuGraphInstantiateWithFlags", [] { return CU(cuGraphInstantiateWithFlags)(&h.exec, h.graph, 0); }));
  static CUDA_GRAPH_INSTANTIATE_PARAMS params{};
  rows.push_back(exec_row("cuGraphInstantiateWithParams",
                          [] { return CU(cuGraphInstantiateWithParams)(&h.exec, h.graph, &params); }));
  rows.push_back(exec_row("cuGraphInstantiateWithParams_ptsz",
                          [] { return CU(cuGraphInstantiateWithParams_ptsz)(&h.exec, h.graph, &params); }));
}

// The primary context goes and comes again.
void primary(std::vector<Row>& rows) {
  const auto take = [] {
    CUcontext context = nullptr;
    const CUresult r = CU(cuDevicePrimaryCtxRetain)(&context, 0);
    return ok(r) ? CU(cuCtxSetCurrent)(context) : r;
  };
  rows.push_back({"cuDevicePrimaryCtxRetain", take, [] { return ok(CU(cuDevicePrimaryCtxRelease_v2)(0)); }});
  rows.push_back({"cuDevicePrimaryCtxRetain", take, [] {
                    const CUresult r = CU(cuDevicePrimaryCtxRelease)(0);
                    return ok(r) || ok(CU(cuDevicePrimaryCtxRelease_v2)(0));
                  }});
  rows.push_back({"cuDevicePrimaryCtxRetain", take, [] {  // a reset ends what was made in it
                    CUdeviceptr p = 0;
                    if (!ok(CU(cuMemAlloc_v2)(&p, kMiB))) return false;
                    const CUresult r = CU(cuDevicePrimaryCtxReset)(0);
                    if (!ok(r) && !ok(CU(cuDevicePrimaryCtxReset_v2)(0))) return false;
                    CU(cuDevicePrimaryCtxRelease_v2)(0);
                    return true;
                  }});
  rows.push_back({"cuDevicePrimaryCtxRetain", take, [] {
                    const bool reset = ok(CU(cuDevicePrimaryCtxReset_v2)(0));
                    CU(cuDevicePrimaryCtxRelease_v2)(0);
                    return reset;
                  }});
}

}  // namespace

std::vector<Row> implicit_rows() {
  std::vector<Row> rows;
  contexts(rows);
  green(rows);
  modules(rows);
  limits_and_streams(rows);
  graphs(rows);
  primary(rows);  // last: they start without a primary context
  return rows;
}

}  // namespace kvram::test
