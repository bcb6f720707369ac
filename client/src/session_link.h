// One session as the library sees it: its connections, and the calls that are made in it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/src/connection.h"
#include "client/src/decode.h"
#include "client/src/pieces.h"
#include "client/src/shared_regions.h"
#include "client/src/stripes.h"
#include "client/src/transport.h"
#include "kernd/client/options.h"
#include "kernd/client/session.h"

namespace kernd::client {

// All that is connected to one daemon.
struct Wire {
  explicit Wire(const ClientOptions& options) : transport(options), stripes(options) {}

  Transport transport;
  Stripes stripes;
};

class SessionLink {
 public:
  // Opens a session over `wire`, or over another one to the daemon that owns it.
  static absl::StatusOr<std::shared_ptr<const SessionLink>> Open(std::shared_ptr<Wire> wire,
                                                                 const SessionOptions& session, const CallTerms& terms);
  SessionLink(std::shared_ptr<Wire> wire, OpenedSession session);

  // With the metadata that the daemon tells a restart by.
  CallTerms With(CallTerms terms) const;
  absl::StatusOr<CallTerms> Terms(const CallOptions& options) const;

  // All these: terms of this link.
  absl::Status Delete(const std::vector<std::uint64_t>& ids, const CallTerms& terms) const;
  // As soon as a helper of the stripes comes to it, with time of its own; `terms` may be used up.
  void DeleteLater(std::vector<std::uint64_t> ids, const CallTerms& terms) const;
  absl::Status Close(const CallTerms& terms) const;
  // For destructors: does not wait for long, and says nothing.
  void CloseSoon() const;

  Wire& wire() const { return *wire_; }
  const OpenedSession& session() const { return session_; }
  // Of this process.
  SharedRegions& shared() const { return *shared_; }

 private:
  const std::shared_ptr<Wire> wire_;
  const OpenedSession session_;
  const std::unique_ptr<SharedRegions> shared_ = std::make_unique<SharedRegions>();
};

}  // namespace kernd::client
