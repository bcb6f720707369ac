#include "server/rpc/method_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernd/kernels/error.h"
#include "kernd/v1/compute.pb.h"
#include "kernd/v1/device.pb.h"
#include "kernd/v1/kv_cache.pb.h"
#include "kernd/v1/tensors.pb.h"

namespace kernd::rpc {

void MethodTable::AddMissingMethods() {
  for (const google::protobuf::FileDescriptor* file :
       {v1::MatmulRequest::descriptor()->file(), v1::GetCapabilitiesRequest::descriptor()->file(),
        v1::CreateKvCacheRequest::descriptor()->file(), v1::OpenSessionRequest::descriptor()->file()}) {
    for (int s = 0; s < file->service_count(); ++s) {
      const google::protobuf::ServiceDescriptor& service = *file->service(s);
      for (int m = 0; m < service.method_count(); ++m) {
        const std::string name = absl::StrCat(service.name(), "/", service.method(m)->name());
        const std::string full = service.method(m)->full_name();
        const Handler handler = [full](const ExchangePtr& exchange) {
          exchange->Fail(WithDetail(
              absl::UnimplementedError(absl::StrCat(full, " is part of the protocol and not built in this version")),
              {.reason = std::string(reason::kNotBuilt)}));
        };
        methods_.try_emplace(absl::StrCat("/", service.full_name(), "/", service.method(m)->name()),
                             Method{.name = name, .handler = handler});
      }
    }
  }
}

std::vector<std::string> MethodTable::Names() const {
  std::vector<std::string> names;
  for (const auto& [path, method] : methods_) names.push_back(method.name);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace kernd::rpc
