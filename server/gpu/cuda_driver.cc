#include "server/gpu/cuda_driver.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernd/kernels/error.h"
#include "kernels/gpu/cuda.h"

namespace kernd::gpu {
namespace {

class CudaDriver final : public Driver {
 public:
  explicit CudaDriver(DeviceInfo device) : device_(std::move(device)) {}

  const DeviceInfo& device() const override { return device_; }
  absl::Status Bind() override {
    KERND_CUDA(cudaSetDevice(device_.ordinal));
    return absl::OkStatus();
  }
  absl::Status Health() override {
    (void)cudaGetLastError();  // what is not sticky ends here
    // A context that has met a fault answers every call with it.
    return CudaStatus(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  absl::StatusOr<Stream> CreateStream() override {
    cudaStream_t stream = nullptr;
    KERND_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
  }
  absl::StatusOr<Event> CreateEvent() override {
    cudaEvent_t event = nullptr;
    KERND_CUDA(cudaEventCreateWithFlags(&event, cudaEventBlockingSync));
    return static_cast<Event>(event);
  }
  void Destroy(Stream stream) override { (void)cudaStreamDestroy(stream); }
  void DestroyEvent(Event event) override { (void)cudaEventDestroy(static_cast<cudaEvent_t>(event)); }

  absl::Status Record(Event event, Stream stream) override {
    KERND_CUDA(cudaEventRecord(static_cast<cudaEvent_t>(event), stream));
    return absl::OkStatus();
  }
  absl::StatusOr<bool> Passed(Event event) override {
    const cudaError_t error = cudaEventQuery(static_cast<cudaEvent_t>(event));
    if (error == cudaErrorNotReady) return false;
    KERND_RETURN_IF_ERROR(CudaStatus(error, "cudaEventQuery"));
    return true;
  }
  absl::Status Wait(Event event) override {
    KERND_CUDA(cudaEventSynchronize(static_cast<cudaEvent_t>(event)));
    return absl::OkStatus();
  }
  absl::StatusOr<absl::Duration> Between(Event from, Event to) override {
    float ms = 0;
    KERND_CUDA(cudaEventElapsedTime(&ms, static_cast<cudaEvent_t>(from), static_cast<cudaEvent_t>(to)));
    return absl::Milliseconds(static_cast<double>(ms));
  }
  absl::Status Synchronize(Stream stream) override {
    KERND_CUDA(cudaStreamSynchronize(stream));
    return absl::OkStatus();
  }

  absl::Status CopyIn(std::byte* device, const std::byte* host, std::int64_t bytes, Stream stream) override {
    KERND_CUDA(cudaMemcpyAsync(device, host, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice, stream));
    return absl::OkStatus();
  }
  absl::Status CopyOut(std::byte* host, const std::byte* device, std::int64_t bytes, Stream stream) override {
    KERND_CUDA(cudaMemcpyAsync(host, device, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToHost, stream));
    return absl::OkStatus();
  }

  absl::Status CopyRows(std::byte* to, const std::byte* from, std::int64_t pitch, std::int64_t row_bytes,
                        std::int64_t rows, Stream stream) override {
    if (rows == 1) {
      KERND_CUDA(cudaMemcpyAsync(to, from, static_cast<std::size_t>(row_bytes), cudaMemcpyDefault, stream));
      return absl::OkStatus();
    }
    KERND_CUDA(cudaMemcpy2DAsync(to, static_cast<std::size_t>(row_bytes), from, static_cast<std::size_t>(pitch),
                                 static_cast<std::size_t>(row_bytes), static_cast<std::size_t>(rows), cudaMemcpyDefault,
                                 stream));
    return absl::OkStatus();
  }

  absl::StatusOr<std::byte*> AllocatePinned(std::int64_t bytes) override {
    void* memory = nullptr;
    const cudaError_t error = cudaHostAlloc(&memory, static_cast<std::size_t>(bytes), cudaHostAllocPortable);
    if (error != cudaSuccess) return AllocationError(error, "cudaHostAlloc", bytes);
    return static_cast<std::byte*>(memory);
  }
  void FreePinned(std::byte* memory) override { (void)cudaFreeHost(memory); }
  absl::Status RegisterHost(std::byte* memory, std::int64_t bytes) override {
    const cudaError_t error = cudaHostRegister(memory, static_cast<std::size_t>(bytes), cudaHostRegisterPortable);
    return error == cudaSuccess ? absl::OkStatus() : AllocationError(error, "cudaHostRegister", bytes);
  }
  void UnregisterHost(std::byte* memory) override { (void)cudaHostUnregister(memory); }

  absl::StatusOr<Pool> CreatePool(std::int64_t limit) override {
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.handleTypes = cudaMemHandleTypeNone;
    properties.location.type = cudaMemLocationTypeDevice;
    properties.location.id = device_.ordinal;
    properties.maxSize = static_cast<std::size_t>(limit);
    cudaMemPool_t pool = nullptr;
    KERND_CUDA(cudaMemPoolCreate(&pool, &properties));
    std::uint64_t keep = UINT64_MAX;
    KERND_CUDA(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
    return static_cast<Pool>(pool);
  }
  void DestroyPool(Pool pool) override { (void)cudaMemPoolDestroy(static_cast<cudaMemPool_t>(pool)); }
  absl::StatusOr<std::byte*> Allocate(Pool pool, std::int64_t bytes, Stream stream) override {
    void* memory = nullptr;
    const cudaError_t error =
        cudaMallocFromPoolAsync(&memory, static_cast<std::size_t>(bytes), static_cast<cudaMemPool_t>(pool), stream);
    if (error != cudaSuccess) return AllocationError(error, "cudaMallocFromPoolAsync", bytes);
    return static_cast<std::byte*>(memory);
  }
  absl::Status Free(std::byte* memory, Stream stream) override {
    KERND_CUDA(cudaFreeAsync(memory, stream));
    return absl::OkStatus();
  }
  absl::StatusOr<std::int64_t> Reserved(Pool pool) override {
    std::uint64_t bytes = 0;
    KERND_CUDA(cudaMemPoolGetAttribute(static_cast<cudaMemPool_t>(pool), cudaMemPoolAttrReservedMemCurrent, &bytes));
    return static_cast<std::int64_t>(bytes);
  }
  absl::Status Trim(Pool pool, std::int64_t keep) override {
    KERND_CUDA(cudaMemPoolTrimTo(static_cast<cudaMemPool_t>(pool), static_cast<std::size_t>(keep)));
    return absl::OkStatus();
  }
  absl::StatusOr<std::int64_t> FreeMemory() override {
    std::size_t free = 0, total = 0;
    KERND_CUDA(cudaMemGetInfo(&free, &total));
    return static_cast<std::int64_t>(free);
  }

 private:
  static absl::Status AllocationError(cudaError_t error, const char* call, std::int64_t bytes) {
    const absl::Status status = CudaStatus(error, absl::StrCat(call, " of ", bytes, " bytes"));
    if (error != cudaErrorMemoryAllocation) return status;
    (void)cudaGetLastError();  // or the next call that succeeds would report it
    return absl::ResourceExhaustedError(status.message());
  }

  const DeviceInfo device_;
};

}  // namespace

std::unique_ptr<Driver> MakeCudaDriver(DeviceInfo device) {
  return std::make_unique<CudaDriver>(std::move(device));
}

}  // namespace kernd::gpu
