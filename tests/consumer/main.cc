// consumer [ENDPOINT]: with an endpoint, a matmul there must give the right product; without one, a call to where no
// daemon is must give the error of its type. Exit code 0 where it does.
#include <cstdio>
#include <span>
#include <vector>

#include <kernd/client/client.h>

namespace {

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "consumer: %s (reason '%s')\n", status.ToString().c_str(),
               kernd::client::DetailsOf(status).reason.c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  using kernd::client::View;
  kernd::client::ClientOptions options;
  options.endpoint = argc > 1 ? argv[1] : "unix:/nonexistent/kernd.sock";
  const auto client = kernd::client::Client::Connect(options);
  if (!client.ok()) return Fail(client.status());

  const std::vector<float> a = {1, 2, 3, 4, 5, 6}, b = {1, 0, 0, 1, 1, 1};
  const auto reply = client->Matmul({.a = View(a, {2, 3}), .b = View(b, {3, 2})});
  if (argc <= 1) {
    const bool right = absl::IsUnavailable(reply.status()) &&
                       kernd::client::DetailsOf(reply.status()).reason == kernd::client::reason::kNotConnected;
    return right ? 0 : Fail(reply.status());
  }
  if (!reply.ok()) return Fail(reply.status());
  const std::span<const float> d = reply->d.values<float>();
  if (std::vector<float>(d.begin(), d.end()) != std::vector<float>{4, 5, 10, 11}) {
    std::fprintf(stderr, "consumer: a wrong product\n");
    return 1;
  }
  std::printf("%s on %s\n", reply->kernel.name.c_str(), reply->kernel.device.c_str());
}
