// service_peer: one of the servers of peer.h.
#include "tests/bench/service/peer.h"

#include <signal.h>
#include <sys/prctl.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>

namespace kernd::bench {

void Multiply(const v1::MatmulRequest& request, v1::MatmulReply& reply) {
  const v1::Tensor& a = request.matmul().a();
  const v1::Tensor& b = request.matmul().b();
  const std::int64_t m = a.shape(0), depth = a.shape(1), n = b.shape(1);
  const auto* const left = reinterpret_cast<const float*>(a.data().data());
  const auto* const right = reinterpret_cast<const float*>(b.data().data());
  v1::Tensor& d = *reply.mutable_d();
  d.set_dtype(v1::DATA_TYPE_F32);
  d.add_shape(m);
  d.add_shape(n);
  d.mutable_data()->resize(static_cast<std::size_t>(m * n) * sizeof(float));
  auto* const result = reinterpret_cast<float*>(d.mutable_data()->data());
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      float sum = 0;
      for (std::int64_t k = 0; k < depth; ++k) sum += left[i * depth + k] * right[k * n + j];
      result[i * n + j] = sum;
    }
  }
}

}  // namespace kernd::bench

int main(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // whoever started it must not leave it behind
  CLI::App app("One of the servers that kernd is compared with; prints its address. run_service.py starts it.");
  std::string kind, path;
  int threads = static_cast<int>(std::max(1U, std::min(8U, std::thread::hardware_concurrency() / 2)));
  app.add_option("kind", kind, "proto: gRPC with generated code; raw: gRPC without; socket: plain sockets")
      ->required()
      ->check(CLI::IsMember({"proto", "raw", "socket"}));
  app.add_option("--threads", threads, "Of raw; kernd has as many by default")->check(CLI::Range(1, 64));
  app.add_option("--unix", path, "Of socket: the path of a unix socket, in place of TCP");
  CLI11_PARSE(app, argc, argv);
  if (kind == "proto") return kernd::bench::ServeProto();
  if (kind == "raw") return kernd::bench::ServeRaw(threads);
  return kernd::bench::ServeSocket(path.empty() ? "127.0.0.1:0" : "unix:" + path);
}
