#include "simgpu/module.h"

#include <array>
#include <cstdio>

#include "lease/cost.h"
#include "simgpu/memory.h"

namespace kvram::simgpu {
namespace {

FunctionPtr make_function(const ImageKernel& kernel) {
  auto function = std::make_shared<Function>();
  function->kernel = kernel;
  functions().add(function);
  return function;
}

CUresult make_globals(Context& context, Module& module) {
  for (const ImageGlobal& global : module.image->globals) {
    Global made{0, global.bytes, global.managed};
    // The bytes are in the image already: the address space costs nothing more.
    if (CUresult r = allocate_uncharged(context, global.bytes, BlockKind::kModule, &made.at); r != CUDA_SUCCESS)
      return r;
    module.globals[global.name] = made;
  }
  return CUDA_SUCCESS;
}

CUresult give(ModulePtr module, CUmodule* out) {
  *out = reinterpret_cast<CUmodule>(modules().add(std::move(module)));
  return CUDA_SUCCESS;
}

CUresult load_data(CUmodule* out, const void* image) {
  return with_context([&](Context& context) {
    if (out == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
    ModulePtr module;
    CUresult r = load_module(context, std::make_shared<Image>(read_image(image)), &module);
    return r == CUDA_SUCCESS ? give(std::move(module), out) : r;
  });
}

}  // namespace

Module::~Module() {
  for (auto& [name, function] : functions) kvram::simgpu::functions().remove(function.get());
  for (auto& [name, global] : globals) free_uncharged(global.at);
  if (charged != 0) uncharge(*device, charged);
}

HandleTable<Module>& modules() {
  static auto* const table = new HandleTable<Module>;
  return *table;
}
HandleTable<Library>& libraries() {
  static auto* const table = new HandleTable<Library>;
  return *table;
}
HandleTable<Function>& functions() {
  static auto* const table = new HandleTable<Function>;
  return *table;
}

CUresult check_image(const Image& image) {
  if (image.status == Image::Status::kInvalid) return CUDA_ERROR_INVALID_IMAGE;
  return image.status == Image::Status::kBadPtx ? CUDA_ERROR_INVALID_PTX : CUDA_SUCCESS;
}

CUresult load_module(Context& context, std::shared_ptr<const Image> image, ModulePtr* out) {
  if (CUresult r = check_image(*image); r != CUDA_SUCCESS) return r;
  auto module = std::make_shared<Module>();
  module->device = context.device;
  module->context = context.weak_from_this();
  uint64_t cost = lease::round_up(image->bytes, context.device->info->costs.module_page_bytes);
  if (CUresult r = charge(*context.device, cost); r != CUDA_SUCCESS) return r;
  module->charged = cost;
  module->image = std::move(image);
  if (CUresult r = make_globals(context, *module); r != CUDA_SUCCESS) return r;
  for (const ImageKernel& kernel : module->image->kernels) {
    FunctionPtr function = make_function(kernel);
    function->module = module;
    module->functions[kernel.name] = std::move(function);
  }
  if (context.modules) {
    std::lock_guard lock(context.modules->mutex);
    context.modules->modules.push_back(module);
  }
  *out = std::move(module);
  return CUDA_SUCCESS;
}

void unload_module(const ModulePtr& module) {
  modules().remove(module.get());
  std::shared_ptr<Context> context = module->context.lock();
  if (!context || !context->modules) return;
  std::lock_guard lock(context->modules->mutex);
  std::erase(context->modules->modules, module);
}

bool read_whole_file(const char* path, std::string* out) {
  std::FILE* file = std::fopen(path, "re");
  if (file == nullptr) return false;
  std::array<char, 16384> buffer{};
  while (size_t got = std::fread(buffer.data(), 1, buffer.size(), file)) out->append(buffer.data(), got);
  std::fclose(file);
  return true;
}

CUresult read_image_file(const char* path, std::shared_ptr<const Image>* out) {
  std::string content;
  if (!read_whole_file(path, &content)) return CUDA_ERROR_FILE_NOT_FOUND;
  *out = std::make_shared<Image>(read_file_image(content));
  return CUDA_SUCCESS;
}

CUresult find_function(const ModulePtr& module, const char* name, FunctionPtr* out) {
  std::lock_guard lock(module->mutex);
  auto it = module->functions.find(std::string_view(name));
  if (it != module->functions.end()) {
    *out = it->second;
    return CUDA_SUCCESS;
  }
  if (!module->image->opaque) return CUDA_ERROR_NOT_FOUND;
  ImageKernel kernel;
  kernel.name = name;
  FunctionPtr function = make_function(kernel);
  function->module = module;
  module->functions[kernel.name] = function;
  *out = std::move(function);
  return CUDA_SUCCESS;
}

CUresult find_global(Module& module, const char* name, Global* out) {
  std::lock_guard lock(module.mutex);
  auto it = module.globals.find(std::string_view(name));
  if (it == module.globals.end()) return CUDA_ERROR_NOT_FOUND;
  *out = it->second;
  return CUDA_SUCCESS;
}

CUresult resolve_function(Context& context, CUfunction handle, FunctionPtr* out) {
  FunctionPtr function = functions().find(handle);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  if (function->is_kernel) {
    LibraryPtr library = function->library.lock();
    if (!library) return CUDA_ERROR_INVALID_HANDLE;
    ModulePtr module;
    if (CUresult r = library_module(library, context, &module); r != CUDA_SUCCESS) return r;
    return find_function(module, function->kernel.name.c_str(), out);
  }
  *out = std::move(function);
  return CUDA_SUCCESS;
}

CUresult make_modules_of(Context& context) {
  context.modules = std::make_shared<ModuleState>();
  return CUDA_SUCCESS;
}

void forget_context_modules(Context& context) {
  if (!context.modules) return;
  std::vector<ModulePtr> gone;
  {
    std::lock_guard lock(context.modules->mutex);
    gone.swap(context.modules->modules);
  }
  for (const ModulePtr& module : gone) {
    modules().remove(module.get());
    if (LibraryPtr library = module->library.lock()) {
      std::lock_guard lock(library->mutex);
      library->loaded.erase(context.id);
    }
  }
  context.modules.reset();
}

}  // namespace kvram::simgpu

using namespace kvram::simgpu;  // NOLINT(google-build-using-namespace): C entry points

KV_CUDA_EXPORT cuModuleLoadData(CUmodule* module, const void* image) { return load_data(module, image); }
KV_CUDA_EXPORT cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int count, CUjit_option* options,
                                  void** values) {
  if (count != 0 && (options == nullptr || values == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  return load_data(module, image);
}
KV_CUDA_EXPORT cuModuleLoadFatBinary(CUmodule* module, const void* image) { return load_data(module, image); }
KV_CUDA_EXPORT cuModuleLoad(CUmodule* out, const char* path) {
  return with_context([&](Context& context) {
    if (out == nullptr || path == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::shared_ptr<const Image> image;
    if (CUresult r = read_image_file(path, &image); r != CUDA_SUCCESS) return r;
    ModulePtr module;
    CUresult r = load_module(context, std::move(image), &module);
    return r == CUDA_SUCCESS ? give(std::move(module), out) : r;
  });
}

KV_CUDA_EXPORT cuModuleUnload(CUmodule handle) {
  return with_driver([&] {
    ModulePtr module = modules().find(handle);
    if (!module || !module->library.expired()) return CUDA_ERROR_INVALID_HANDLE;
    unload_module(module);
    return CUDA_SUCCESS;
  });
}

KV_CUDA_EXPORT cuModuleGetFunction(CUfunction* out, CUmodule handle, const char* name) {
  return with_context([&](Context&) {
    if (out == nullptr || name == nullptr || *name == '\0') return CUDA_ERROR_INVALID_VALUE;
    ModulePtr module = modules().find(handle);
    if (!module) return CUDA_ERROR_INVALID_HANDLE;
    FunctionPtr function;
    CUresult r = find_function(module, name, &function);
    if (r == CUDA_SUCCESS) *out = function->handle();
    return r;
  });
}
KV_CUDA_EXPORT cuModuleGetFunctionCount(unsigned int* count, CUmodule handle) {
  return with_driver([&] {
    ModulePtr module = modules().find(handle);
    if (!module) return CUDA_ERROR_INVALID_HANDLE;
    if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard lock(module->mutex);
    *count = static_cast<unsigned>(module->functions.size());
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuModuleEnumerateFunctions(CUfunction* out, unsigned int room, CUmodule handle) {
  return with_driver([&] {
    ModulePtr module = modules().find(handle);
    if (!module) return CUDA_ERROR_INVALID_HANDLE;
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard lock(module->mutex);
    unsigned i = 0;
    for (auto& [name, function] : module->functions) {
      if (i < room) out[i++] = function->handle();
    }
    return CUDA_SUCCESS;
  });
}

namespace {
template <typename Pointer, typename Size>
CUresult get_global(Pointer* at, Size* bytes, CUmodule handle, const char* name, const char* call) {
  return with_context(
      [&](Context&) {
        if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
        ModulePtr module = modules().find(handle);
        if (!module) return CUDA_ERROR_INVALID_HANDLE;
        Global global;
        if (CUresult r = find_global(*module, name, &global); r != CUDA_SUCCESS) return r;
        if (at != nullptr) *at = static_cast<Pointer>(global.at);
        if (bytes != nullptr) *bytes = static_cast<Size>(global.bytes);
        return CUDA_SUCCESS;
      },
      call);
}
}  // namespace

KV_CUDA_EXPORT cuModuleGetGlobal_v2(CUdeviceptr* at, size_t* bytes, CUmodule module, const char* name) {
  return get_global(at, bytes, module, name, __func__);
}
KV_CUDA_EXPORT cuModuleGetGlobal(CUdeviceptr_v1* at, unsigned int* bytes, CUmodule module, const char* name) {
  return get_global(at, bytes, module, name, __func__);
}
KV_CUDA_EXPORT cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  return with_driver([&] {
    if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *mode = CU_MODULE_EAGER_LOADING;
    return CUDA_SUCCESS;
  });
}
