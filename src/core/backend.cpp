#include "core/backend.h"

#include <dlfcn.h>

#include <cstdlib>

#include "core/build.h"

namespace tilewise {
namespace {

struct Opened {
  const Backend* backend = nullptr;
  Text why_not;
};

// By its name alone, so that the loader looks where the program or the library that asks was told to look.
const char* library_name() {
  const char* given = std::getenv("TILEWISE_CUDA_LIBRARY");
  return given && *given ? given : "libtilewise_cuda.so.0";
}

Opened open_backend() {
  Opened opened;
  void* library = dlopen(library_name(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    opened.why_not.format("the CUDA back end is missing (a build where there is nvcc makes it): %s", dlerror());
    return opened;
  }
  const auto door = reinterpret_cast<BackendDoor*>(dlsym(library, kBackendDoor));
  const Backend* backend = door ? door() : nullptr;
  if (!backend || backend->build != kBuild) {
    opened.why_not.format("%s is not the CUDA back end of this build", library_name());
    return opened;
  }
  opened.backend = backend;
  return opened;
}

}  // namespace

const Backend* cuda_backend(Text* why_not) {
  static const Opened opened = open_backend();
  if (why_not) *why_not = opened.why_not;
  return opened.backend;
}

Status check_gpu(int32_t index) {
  Text why_not;
  const Backend* backend = cuda_backend(&why_not);
  const int32_t count = backend ? backend->gpu_count(why_not) : 0;
  if (count == 0) return failure(TW_DEVICE_ERROR, "device_type is TW_CUDA, but %s", why_not.chars);
  if (index >= count) {
    return failure(TW_INVALID_ARGUMENT, "device_index is %d: this process sees %d GPU%s", index, count,
                   count == 1 ? "" : "s");
  }
  return {};
}

}  // namespace tilewise
