// cuLink*: puts pieces of PTX (or one cubin) together into an image that cuModuleLoadData takes. Nothing is compiled.
#include <string>

#include "simgpu/module.h"

namespace kvram::simgpu {
namespace {

struct Link {
  std::mutex mutex;
  std::string text;
};

HandleTable<Link>& links() {
  static auto* const table = new HandleTable<Link>;
  return *table;
}

CUresult add_piece(CUlinkState state, CUjitInputType type, const std::string& piece) {
  std::shared_ptr<Link> link = links().find(state);
  if (!link) return CUDA_ERROR_INVALID_HANDLE;
  if (type == CU_JIT_INPUT_PTX && piece.find(".version") == std::string::npos) return CUDA_ERROR_INVALID_PTX;
  std::lock_guard lock(link->mutex);
  // A PTX piece may come with its NUL; the whole text has one at its end.
  link->text.append(piece, 0, type == CU_JIT_INPUT_PTX ? piece.find('\0') : std::string::npos);
  if (type == CU_JIT_INPUT_PTX) link->text += '\n';
  return CUDA_SUCCESS;
}

CUresult create(CUlinkState* out) {
  return with_context([&](Context&) {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *out = reinterpret_cast<CUlinkState>(links().add(std::make_shared<Link>()));
    return CUDA_SUCCESS;
  });
}

CUresult add_data(CUlinkState state, CUjitInputType type, void* data, size_t size, const char* call) {
  return with_driver(
      [&] {
        if (data == nullptr || size == 0) return CUDA_ERROR_INVALID_VALUE;
        return add_piece(state, type, std::string(static_cast<const char*>(data), size));
      },
      call);
}

CUresult add_file(CUlinkState state, CUjitInputType type, const char* path, const char* call) {
  return with_driver(
      [&] {
        std::string content;
        if (path == nullptr) return CUDA_ERROR_INVALID_VALUE;
        if (!read_whole_file(path, &content)) return CUDA_ERROR_FILE_NOT_FOUND;
        return add_piece(state, type, content);
      },
      call);
}

}  // namespace
}  // namespace kvram::simgpu

using namespace kvram::simgpu;  // NOLINT(google-build-using-namespace): C entry points

KV_CUDA_EXPORT cuLinkCreate(unsigned int, CUjit_option*, void**, CUlinkState* out) { return create(out); }
KV_CUDA_EXPORT cuLinkCreate_v2(unsigned int, CUjit_option*, void**, CUlinkState* out) { return create(out); }
KV_CUDA_EXPORT cuLinkAddData(CUlinkState state, CUjitInputType type, void* data, size_t size, const char*, unsigned int,
                             CUjit_option*, void**) {
  return add_data(state, type, data, size, __func__);
}
KV_CUDA_EXPORT cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void* data, size_t size, const char*,
                                unsigned int, CUjit_option*, void**) {
  return add_data(state, type, data, size, __func__);
}
KV_CUDA_EXPORT cuLinkAddFile(CUlinkState state, CUjitInputType type, const char* path, unsigned int, CUjit_option*,
                             void**) {
  return add_file(state, type, path, __func__);
}
KV_CUDA_EXPORT cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char* path, unsigned int, CUjit_option*,
                                void**) {
  return add_file(state, type, path, __func__);
}
KV_CUDA_EXPORT cuLinkComplete(CUlinkState state, void** image, size_t* size) {
  return with_driver([&] {
    std::shared_ptr<Link> link = links().find(state);
    if (!link) return CUDA_ERROR_INVALID_HANDLE;
    if (image == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard lock(link->mutex);
    if (link->text.empty()) return CUDA_ERROR_INVALID_IMAGE;
    *image = link->text.data();  // the link's own, until cuLinkDestroy
    if (size != nullptr) *size = link->text.size() + 1;
    return CUDA_SUCCESS;
  });
}
KV_CUDA_EXPORT cuLinkDestroy(CUlinkState state) {
  return with_driver([&] { return links().remove(state) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE; });
}
