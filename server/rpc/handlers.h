// The methods that are built: each translates a request, asks the engine, and translates the answer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/core/engine.h"
#include "server/core/session_store.h"
#include "server/rpc/method_table.h"
#include "server/tune/tuner.h"

namespace kernd::rpc {

struct ServerFacts {
  std::string version, revision, compiler, cuda_toolkit;
  std::uint64_t epoch = 0;  // differs after each start
  std::int64_t max_message_bytes = 0;
  std::string advertise;              // what clients of a session dial; empty: what they dialled
  std::string shared_memory_socket;   // empty: off
  std::vector<std::string> not_used;  // why a GPU that was found is not served
};

// Compute: Matmul, Attention, Plan. The engine and the sessions must outlive the table.
void AddComputeMethods(core::Engine& engine, core::SessionStore& sessions, std::uint64_t epoch, MethodTable& table);

// Device: GetCapabilities, ListKernels, TrimPool. The engine must outlive the table.
void AddDeviceMethods(core::Engine& engine, const ServerFacts& facts, MethodTable& table);

// Device: Autotune. The tuner must outlive the table.
void AddAutotune(tune::Tuner& tuner, MethodTable& table);

class Handover;

// Tensors: all but shared memory. The store and the backend must outlive the table.
void AddTensorMethods(core::SessionStore& sessions, const core::Backend& backend, const ServerFacts& facts,
                      MethodTable& table);

// Tensors: shared memory; `handover` may be null, it is then off. All must outlive the table.
void AddSharedMemoryMethods(core::SessionStore& sessions, core::Backend& backend, Handover* handover,
                            std::uint64_t epoch, MethodTable& table);

}  // namespace kernd::rpc
