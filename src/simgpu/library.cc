// Libraries: images that belong to no context, and their kernels.
#include "simgpu/module.h"

namespace kvram::simgpu {
namespace {

CUresult make_library(std::shared_ptr<const Image> image, CUlibrary* out) {
  if (CUresult r = check_image(*image); r != CUDA_SUCCESS) return r;
  auto library = std::make_shared<Library>();
  library->image = std::move(image);
  for (const ImageKernel& kernel : library->image->kernels) {
    auto handle = std::make_shared<Function>();
    handle->kernel = kernel;
    handle->is_kernel = true;
    handle->library = library;
    library->kernels[kernel.name] = handle;
    functions().add(handle);
  }
  if (std::shared_ptr<Context> context = current_context()) {
    ModulePtr module;
    if (CUresult r = library_module(library, *context, &module); r != CUDA_SUCCESS) {
      for (auto& [name, kernel] : library->kernels) functions().remove(kernel.get());
      return r;
    }
  }
  *out = reinterpret_cast<CUlibrary>(libraries().add(std::move(library)));
  return CUDA_SUCCESS;
}

// The body runs with the library of the handle.
template <typename F>
CUresult with_library(CUlibrary handle, F&& body, const char* call = __builtin_FUNCTION()) {
  return with_driver(
      [&] {
        LibraryPtr library = libraries().find(handle);
        return library ? body(library) : CUDA_ERROR_INVALID_HANDLE;
      },
      call);
}

template <typename F>
CUresult with_kernel(CUkernel handle, F&& body, const char* call = __builtin_FUNCTION()) {
  return with_driver(
      [&] {
        FunctionPtr kernel = functions().find(handle);
        return kernel && kernel->is_kernel ? body(*kernel) : CUDA_ERROR_INVALID_HANDLE;
      },
      call);
}

CUresult library_global(const LibraryPtr& library, const char* name, bool managed, CUdeviceptr* at, size_t* bytes) {
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Context> context = current_context();
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  ModulePtr module;
  if (CUresult r = library_module(library, *context, &module); r != CUDA_SUCCESS) return r;
  Global global;
  if (CUresult r = find_global(*module, name, &global); r != CUDA_SUCCESS) return r;
  if (global.managed != managed) return CUDA_ERROR_NOT_FOUND;
  if (at != nullptr) *at = global.at;
  if (bytes != nullptr) *bytes = global.bytes;
  return CUDA_SUCCESS;
}

}  // namespace

CUresult library_module(const LibraryPtr& library, Context& context, ModulePtr* out) {
  std::lock_guard lock(library->mutex);
  auto it = library->loaded.find(context.id);
  if (it != library->loaded.end()) {
    *out = it->second;
    return CUDA_SUCCESS;
  }
  ModulePtr module;
  if (CUresult r = load_module(context, library->image, &module); r != CUDA_SUCCESS) return r;
  module->library = library;
  modules().add(module);
  library->loaded[context.id] = module;
  *out = std::move(module);
  return CUDA_SUCCESS;
}

}  // namespace kvram::simgpu

using namespace kvram::simgpu;  // NOLINT(google-build-using-namespace): C entry points

KV_CUDA_EXPORT cuLibraryLoadData(CUlibrary* out, const void* code, CUjit_option*, void**, unsigned int,
                                 CUlibraryOption*, void**, unsigned int) {
  return with_driver([&] {
    if (out == nullptr || code == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return make_library(std::make_shared<Image>(read_image(code)), out);
  });
}
KV_CUDA_EXPORT cuLibraryLoadFromFile(CUlibrary* out, const char* path, CUjit_option*, void**, unsigned int,
                                     CUlibraryOption*, void**, unsigned int) {
  return with_driver([&] {
    if (out == nullptr || path == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::shared_ptr<const Image> image;
    CUresult r = read_image_file(path, &image);
    return r == CUDA_SUCCESS ? make_library(std::move(image), out) : r;
  });
}

KV_CUDA_EXPORT cuLibraryUnload(CUlibrary handle) {
  return with_driver([&] {
    LibraryPtr library = libraries().remove(handle);
    if (!library) return CUDA_ERROR_INVALID_HANDLE;
    std::map<uint64_t, ModulePtr> loaded;
    {
      std::lock_guard lock(library->mutex);
      loaded.swap(library->loaded);
      for (auto& [name, kernel] : library->kernels) functions().remove(kernel.get());
    }
    for (auto& [id, module] : loaded) unload_module(module);
    return CUDA_SUCCESS;
  });
}

KV_CUDA_EXPORT cuLibraryGetKernel(CUkernel* out, CUlibrary handle, const char* name) {
  return with_library(handle, [&](const LibraryPtr& library) {
    if (out == nullptr || name == nullptr || *name == '\0') return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard lock(library->mutex);
    auto it = library->kernels.find(std::string_view(name));
    if (it == library->kernels.end() && !library->image->opaque) return CUDA_ERROR_NOT_FOUND;
    if (it == library->kernels.end()) {
      auto made = std::make_shared<Function>();
      made->kernel.name = name;
      made->is_kernel = true;
      made->library = library;
      functions().add(made);
      it = library->kernels.emplace(name, std::move(made)).first;
    }
    *out = reinterpret_cast<CUkernel>(it->second.get());
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuLibraryGetKernelCount(unsigned int* count, CUlibrary handle) {
  return with_library(handle, [&](const LibraryPtr& library) {
    if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard lock(library->mutex);
    *count = static_cast<unsigned>(library->kernels.size());
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuLibraryEnumerateKernels(CUkernel* out, unsigned int room, CUlibrary handle) {
  return with_library(handle, [&](const LibraryPtr& library) {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard lock(library->mutex);
    unsigned i = 0;
    for (auto& [name, kernel] : library->kernels) {
      if (i < room) out[i++] = reinterpret_cast<CUkernel>(kernel.get());
    }
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuLibraryGetModule(CUmodule* out, CUlibrary handle) {
  return with_library(handle, [&](const LibraryPtr& library) {
    std::shared_ptr<Context> context = current_context();
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    ModulePtr module;
    CUresult r = library_module(library, *context, &module);
    if (r == CUDA_SUCCESS) *out = reinterpret_cast<CUmodule>(module.get());
    return r;
  });
}
KV_CUDA_EXPORT cuLibraryGetGlobal(CUdeviceptr* at, size_t* bytes, CUlibrary handle, const char* name) {
  return with_library(handle,
                      [&](const LibraryPtr& library) { return library_global(library, name, false, at, bytes); });
}
KV_CUDA_EXPORT cuLibraryGetManaged(CUdeviceptr* at, size_t* bytes, CUlibrary handle, const char* name) {
  return with_library(handle,
                      [&](const LibraryPtr& library) { return library_global(library, name, true, at, bytes); });
}

KV_CUDA_EXPORT cuKernelGetFunction(CUfunction* out, CUkernel handle) {
  return with_context([&](Context& context) {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    FunctionPtr function;
    CUresult r = resolve_function(context, reinterpret_cast<CUfunction>(handle), &function);
    if (r == CUDA_SUCCESS) *out = function->handle();
    return r;
  });
}
KV_CUDA_EXPORT cuKernelGetLibrary(CUlibrary* out, CUkernel handle) {
  return with_kernel(handle, [&](Function& kernel) {
    LibraryPtr library = kernel.library.lock();
    if (out == nullptr || !library) return CUDA_ERROR_INVALID_VALUE;
    *out = reinterpret_cast<CUlibrary>(library.get());
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuKernelGetName(const char** name, CUkernel handle) {
  return with_kernel(handle, [&](Function& kernel) {
    if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *name = kernel.kernel.name.c_str();
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel kernel, CUdevice) {
  return cuFuncGetAttribute(value, attribute, reinterpret_cast<CUfunction>(kernel));
}
KV_CUDA_EXPORT cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice) {
  return cuFuncSetAttribute(reinterpret_cast<CUfunction>(kernel), attribute, value);
}
KV_CUDA_EXPORT cuKernelSetCacheConfig(CUkernel handle, CUfunc_cache, CUdevice) {
  return with_kernel(handle, [](Function&) { return CUDA_SUCCESS; });
}
KV_CUDA_EXPORT cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t* offset, size_t* bytes) {
  return cuFuncGetParamInfo(reinterpret_cast<CUfunction>(kernel), index, offset, bytes);
}
KV_CUDA_EXPORT cuKernelGetParamCount(CUkernel kernel, size_t* count) {
  return cuFuncGetParamCount(reinterpret_cast<CUfunction>(kernel), count);
}
