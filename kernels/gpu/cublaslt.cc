#include "kernels/gpu/cublaslt.h"

#include <cublas_api.h>
#include <dlfcn.h>

#include <map>
#include <mutex>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernd/kernels/gpu.h"
#include "kernels/gpu/cuda.h"

namespace kernd {
namespace {

// Descriptors and algorithms are those of the major version that we were built with.
#define KERND_TEXT_(x) #x
#define KERND_TEXT(x) KERND_TEXT_(x)
constexpr char kLibrary[] = "libcublasLt.so." KERND_TEXT(CUBLAS_VER_MAJOR);

template <typename Function>
bool Find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

absl::StatusOr<CublasLt> Open() {
  void* library = nullptr;
  std::string first_error;
  for (const char* folder : {"", KERND_CUDA_LIBRARY_DIR "/", "/usr/local/cuda/lib64/"}) {
    library = dlopen(absl::StrCat(folder, kLibrary).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
    if (first_error.empty()) first_error = dlerror();
  }
  if (library == nullptr) return absl::NotFoundError(absl::StrCat("cuBLASLt is not installed: ", first_error));
  CublasLt lt;
  const bool whole = Find(library, "cublasLtCreate", lt.Create) && Find(library, "cublasLtGetVersion", lt.GetVersion) &&
                     Find(library, "cublasLtGetStatusName", lt.GetStatusName) &&
                     Find(library, "cublasLtMatmul", lt.Matmul) &&
                     Find(library, "cublasLtMatmulAlgoGetHeuristic", lt.MatmulAlgoGetHeuristic) &&
                     Find(library, "cublasLtMatmulDescInit_internal", lt.MatmulDescInit) &&
                     Find(library, "cublasLtMatmulDescSetAttribute", lt.MatmulDescSetAttribute) &&
                     Find(library, "cublasLtMatrixLayoutInit_internal", lt.MatrixLayoutInit) &&
                     Find(library, "cublasLtMatrixLayoutSetAttribute", lt.MatrixLayoutSetAttribute) &&
                     Find(library, "cublasLtMatmulPreferenceInit_internal", lt.MatmulPreferenceInit) &&
                     Find(library, "cublasLtMatmulPreferenceSetAttribute", lt.MatmulPreferenceSetAttribute);
  if (!whole) return absl::NotFoundError(absl::StrCat(kLibrary, " is not as built with: ", dlerror()));
  return lt;
}

}  // namespace

absl::Status CublasLt::Check(cublasStatus_t status, std::string_view call) const {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  const std::string text = absl::StrCat(std::string(call), ": ", GetStatusName(status));
  if (status == CUBLAS_STATUS_ALLOC_FAILED || status == CUBLAS_STATUS_NOT_INITIALIZED) {
    return WithDetail(absl::ResourceExhaustedError(absl::StrCat(text, " (no memory left for cuBLASLt itself)")),
                      {.reason = std::string(reason::kMemoryFull), .retry_after = absl::Seconds(1)});
  }
  return WithDetail(absl::InternalError(text), {.reason = std::string(reason::kKernelFailed)});
}

absl::StatusOr<const CublasLt*> OpenCublasLt() {
  static const auto& library = *new absl::StatusOr<CublasLt>(Open());
  if (!library.ok()) return library.status();
  return &*library;
}

int CublasLtVersion() {
  const absl::StatusOr<const CublasLt*> lt = OpenCublasLt();
  return lt.ok() ? static_cast<int>((*lt)->GetVersion()) : 0;
}

absl::StatusOr<cublasLtHandle_t> CublasLtHandle(int device) {
  KERND_ASSIGN_OR_RETURN(const CublasLt* lt, OpenCublasLt());
  static auto& mutex = *new std::mutex;
  static auto& handles = *new std::map<int, cublasLtHandle_t>;
  const std::lock_guard lock(mutex);
  if (const auto at = handles.find(device); at != handles.end()) return at->second;
  const DeviceScope scope(device);
  KERND_RETURN_IF_ERROR(scope.status());
  cublasLtHandle_t handle = nullptr;
  KERND_RETURN_IF_ERROR(lt->Check(lt->Create(&handle), "cublasLtCreate"));
  handles.emplace(device, handle);
  return handle;
}

DeviceScope::DeviceScope(int device) {
  const auto enter = [&]() -> absl::Status {
    int current = -1;
    KERND_CUDA(cudaGetDevice(&current));
    if (current == device) return absl::OkStatus();
    KERND_CUDA(cudaSetDevice(device));
    before_ = current;
    return absl::OkStatus();
  };
  status_ = enter();
}

DeviceScope::~DeviceScope() {
  // Nobody is left to hear of an error, and the next call on the device meets it again.
  if (before_ >= 0) (void)cudaSetDevice(before_);
}

}  // namespace kernd
