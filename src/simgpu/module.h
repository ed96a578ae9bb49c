// Modules, libraries and what they contain. A module costs its image rounded up to the GPU's module_page_bytes in the
// context it is loaded in; a library is loaded into the current context at once and into others at the first use there.
#pragma once
#include <map>

#include "simgpu/driver.h"
#include "simgpu/image.h"

namespace kvram::simgpu {

struct Module;
struct Library;

// A CUfunction of a module, or a CUkernel of a library (`library` set), which stands for its function in each context.
struct Function {
  ImageKernel kernel;
  std::weak_ptr<Module> module;
  std::weak_ptr<Library> library;
  bool is_kernel = false;
  std::atomic<int> max_dynamic_shared = 48 * 1024;
  std::atomic<int> carveout = -1;
  std::atomic<int> cluster[3] = {0, 0, 0};
  std::atomic<int> non_portable_cluster = 0;
  // cuFuncSetBlockShape and the rest of the old launch calls.
  std::mutex mutex;
  unsigned block[3] = {1, 1, 1};
  unsigned shared_size = 0;
  CUfunction handle() { return reinterpret_cast<CUfunction>(this); }
};
using FunctionPtr = std::shared_ptr<Function>;

struct Global {
  CUdeviceptr at = 0;
  uint64_t bytes = 0;
  bool managed = false;
};

struct Module {
  std::weak_ptr<Context> context;
  Device* device = nullptr;
  std::weak_ptr<Library> library;  // it belongs to: not unloaded by cuModuleUnload
  std::shared_ptr<const Image> image;
  uint64_t charged = 0;
  std::mutex mutex;  // guards the tables: an opaque image gets its functions when they are asked for
  std::map<std::string, FunctionPtr, std::less<>> functions;
  std::map<std::string, Global, std::less<>> globals;
  ~Module();  // gives back its bytes
};
using ModulePtr = std::shared_ptr<Module>;

struct Library {
  std::shared_ptr<const Image> image;
  std::mutex mutex;
  std::map<std::string, FunctionPtr, std::less<>> kernels;
  std::map<uint64_t, ModulePtr> loaded;  // by context id
};
using LibraryPtr = std::shared_ptr<Library>;

// Of one context: what is loaded in it.
struct ModuleState {
  std::mutex mutex;
  std::vector<ModulePtr> modules;
};

HandleTable<Module>& modules();
HandleTable<Library>& libraries();
HandleTable<Function>& functions();

// CUDA_ERROR_INVALID_IMAGE, CUDA_ERROR_INVALID_PTX, CUDA_ERROR_OUT_OF_MEMORY.
CUresult load_module(Context& context, std::shared_ptr<const Image> image, ModulePtr* out);
void unload_module(const ModulePtr& module);
bool read_whole_file(const char* path, std::string* out);
CUresult read_image_file(const char* path, std::shared_ptr<const Image>* out);
CUresult check_image(const Image& image);
// The library's module in a context, loaded when it is not yet.
CUresult library_module(const LibraryPtr& library, Context& context, ModulePtr* out);
// CUDA_ERROR_NOT_FOUND if the image has no such kernel.
CUresult find_function(const ModulePtr& module, const char* name, FunctionPtr* out);
CUresult find_global(Module& module, const char* name, Global* out);
// What a launch means by a handle: a function, or a kernel's function in the context. CUDA_ERROR_INVALID_HANDLE.
CUresult resolve_function(Context& context, CUfunction handle, FunctionPtr* out);

CUresult make_modules_of(Context& context);
void forget_context_modules(Context& context);

}  // namespace kvram::simgpu
