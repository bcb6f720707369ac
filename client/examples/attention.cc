// Causal attention over random F32 tensors on the daemon of the first argument (127.0.0.1:50051 without one).
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "kernd/client/client.h"

int main(int argc, char** argv) {
  using kernd::client::View;
  constexpr std::int64_t kBatch = 1, kHeads = 8, kLength = 128, kHeadDim = 64;
  const std::vector<std::int64_t> shape = {kBatch, kHeads, kLength, kHeadDim};

  std::mt19937 random(42);
  std::normal_distribution<float> normal;
  std::vector<float> q(kBatch * kHeads * kLength * kHeadDim), k(q.size()), v(q.size());
  for (std::vector<float>* tensor : {&q, &k, &v}) {
    for (float& x : *tensor) x = normal(random);
  }

  kernd::client::ClientOptions options;
  if (argc > 1) options.endpoint = argv[1];
  const auto client = kernd::client::Client::Connect(options);
  if (!client.ok()) {
    std::fprintf(stderr, "%s\n", client.status().ToString().c_str());
    return 1;
  }
  const auto reply = client->Attention({.q = View(q, shape), .k = View(k, shape), .v = View(v, shape), .causal = true});
  if (!reply.ok()) {
    const auto details = kernd::client::DetailsOf(reply.status());
    std::fprintf(stderr, "%s (reason %s)\n", reply.status().ToString().c_str(), details.reason.c_str());
    return 1;
  }
  const std::span<const float> o = reply->o.values<float>();
  std::printf("O %s: %g %g %g ...\n", kernd::client::ToString(reply->o.dtype(), reply->o.shape()).c_str(), o[0], o[1],
              o[2]);
  std::printf("kernel %s on %s, %.0f us, %lld bytes at most\n", reply->kernel.name.c_str(),
              reply->kernel.device.c_str(), reply->timing.kernel_us, static_cast<long long>(reply->memory.peak_bytes));
}
