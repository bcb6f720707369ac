// server/core: the session store against a model that is too simple to be wrong: a byte is a bool, a lease a number.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

#include "kernd/kernels/error.h"
#include "server/core/session_store.h"
#include "tests/support/fake_tensors.h"

namespace kernd::core {
namespace {

using testing::Bytes;
using testing::FakeTensors;

constexpr std::int64_t kUnit = TensorCharge::kUnit, kRecord = TensorCharge::kRecordBytes;
constexpr std::int64_t kQuota = 14 * kUnit, kResident = 21 * kUnit, kDevice = 19 * kUnit;
constexpr int kLease = 20, kFill = 7;  // seconds

// Memory, in the model: its charge, and who holds it.
struct Block {
  std::int64_t charge = 0;
  int session = 0;
  bool in_table = true;
  int users = 0;
};

struct ModelTensor {
  std::int64_t bytes = 0;
  std::uint64_t version = 0, uploaded = 0;  // its own; the highest that an upload of its id had
  TensorState state = TensorState::kFilling;
  std::vector<bool> there;
  int last_chunk = 0;
  int block = -1;
  bool attached = true;
};

struct ModelSession {
  int expires = 0;
  std::map<std::uint64_t, int> tensors;            // into Model::tensors
  std::map<std::uint64_t, std::uint64_t> deleted;  // the highest version, by id
};

class Model {
 public:
  std::map<int, ModelSession> sessions;
  std::vector<ModelTensor> tensors;
  std::vector<Block> blocks;
  int now = 0;

  std::int64_t Used(int session = -1) const {
    std::int64_t sum = 0;
    for (const auto& [id, open] : sessions) {
      if (session == -1 || id == session) sum += static_cast<std::int64_t>(open.tensors.size()) * kRecord;
    }
    for (const Block& block : blocks) {
      if ((block.in_table || block.users > 0) && (session == -1 || block.session == session)) sum += block.charge;
    }
    return sum;
  }
  bool Enter(int session) {
    const auto it = sessions.find(session);
    if (it == sessions.end()) return false;
    if (now >= it->second.expires) {
      End(session);
      return false;
    }
    it->second.expires = now + kLease;
    return true;
  }
  std::int64_t End(int session) {
    std::int64_t freed = 0;
    while (!sessions[session].tensors.empty()) freed += Remove(session, sessions[session].tensors.begin()->first);
    sessions.erase(session);
    return freed;
  }
  std::int64_t Remove(int session, std::uint64_t id) {
    const auto it = sessions[session].tensors.find(id);
    if (it == sessions[session].tensors.end()) return 0;
    ModelTensor& tensor = tensors[static_cast<std::size_t>(it->second)];
    sessions[session].tensors.erase(it);
    tensor.attached = false;
    return kRecord + Drop(tensor);
  }
  std::int64_t Drop(ModelTensor& tensor) {
    if (tensor.block < 0) return 0;
    Block& block = blocks[static_cast<std::size_t>(tensor.block)];
    block.in_table = false;
    tensor.block = -1;
    return block.users == 0 ? block.charge : 0;
  }
  // Empty, or the reason of a refusal.
  std::string Begin(int session, std::uint64_t id, std::int64_t bytes, std::uint64_t version, int& made) {
    if (!Enter(session)) return "SESSION_NOT_FOUND";
    if (version != 0 && version <= sessions[session].deleted[id]) return "TENSOR_NOT_FOUND";
    const auto it = sessions[session].tensors.find(id);
    ModelTensor* old = it == sessions[session].tensors.end() ? nullptr : &tensors[static_cast<std::size_t>(it->second)];
    if (old != nullptr) {
      if (version < old->version) return "OLD_VERSION";
      if (version == old->version && old->state != TensorState::kFailed) {
        made = it->second;
        return bytes == old->bytes ? "" : "INVALID_FIELD";
      }
    }
    const std::int64_t charge = (bytes + kUnit - 1) / kUnit * kUnit;
    if (charge + kRecord > kQuota || charge + kRecord > kDevice) return "TOO_LARGE";
    const Block* const memory =
        old != nullptr && old->block >= 0 ? &blocks[static_cast<std::size_t>(old->block)] : nullptr;
    const bool unused = old != nullptr && (memory == nullptr || memory->users == 0);
    const std::int64_t back = unused ? kRecord + (memory == nullptr ? 0 : memory->charge) : 0;
    // Beside the old one where that fits, else in its place.
    for (const std::int64_t without : {std::int64_t{0}, back}) {
      const bool fits =
          Used(session) - without + charge + kRecord <= kQuota && Used() - without + charge + kRecord <= kDevice;
      if (!fits) continue;
      if (old != nullptr) Remove(session, id);
      made = static_cast<int>(tensors.size());
      tensors.push_back({.bytes = bytes,
                         .version = version,
                         .uploaded = version,
                         .state = bytes == 0 ? TensorState::kReady : TensorState::kFilling,
                         .there = std::vector<bool>(static_cast<std::size_t>(bytes)),
                         .last_chunk = now,
                         .block = static_cast<int>(blocks.size())});
      blocks.push_back({.charge = charge, .session = session});
      sessions[session].tensors[id] = made;
      return "";
    }
    return Used(session) + charge + kRecord > kQuota ? "QUOTA_FULL" : "MEMORY_FULL";
  }
  bool PublishWouldFit(int session) {
    return Enter(session) && Used(session) + kUnit + kRecord <= kQuota && Used() + kUnit + kRecord <= kDevice;
  }
  void Publish(int session, std::uint64_t id) {
    ModelSession& owner = sessions[session];
    const auto there = owner.tensors.find(id);
    std::uint64_t uploaded = owner.deleted[id], version = uploaded;
    if (there != owner.tensors.end()) {
      const ModelTensor& old = tensors[static_cast<std::size_t>(there->second)];
      uploaded = std::max(uploaded, old.uploaded);
      version = std::max(version, old.version);
    }
    Remove(session, id);
    owner.tensors[id] = static_cast<int>(tensors.size());
    tensors.push_back({.bytes = kUnit,
                       .version = version + 1,
                       .uploaded = uploaded,
                       .state = TensorState::kReady,
                       .there = std::vector<bool>(static_cast<std::size_t>(kUnit), true),
                       .last_chunk = now,
                       .block = static_cast<int>(blocks.size())});
    blocks.push_back({.charge = kUnit, .session = session});
  }
  std::string Write(int session, int index, std::int64_t offset, std::int64_t bytes) {
    ModelTensor& tensor = tensors[static_cast<std::size_t>(index)];
    if (offset < 0 || offset + bytes > tensor.bytes) return "OUT_OF_RANGE";
    if (!Enter(session)) return "SESSION_NOT_FOUND";
    if (tensor.state == TensorState::kFailed) return "FILL_FAILED";
    if (!tensor.attached) return "TENSOR_NOT_FOUND";
    if (tensor.state == TensorState::kReady) return "";
    tensor.last_chunk = now;
    std::int64_t covered = 0;
    for (std::int64_t b = offset; b < offset + bytes; ++b) covered += tensor.there[static_cast<std::size_t>(b)];
    if (covered == bytes) return "";
    if (covered > 0) return "OVERLAP";
    std::fill_n(tensor.there.begin() + offset, bytes, true);
    if (std::count(tensor.there.begin(), tensor.there.end(), true) == tensor.bytes) tensor.state = TensorState::kReady;
    return "";
  }
  void Sweep() {
    std::vector<int> over;
    for (auto& [id, session] : sessions) {
      if (now >= session.expires) {
        over.push_back(id);
        continue;
      }
      for (const auto& [number, index] : session.tensors) {
        ModelTensor& tensor = tensors[static_cast<std::size_t>(index)];
        if (tensor.state != TensorState::kFilling || now - tensor.last_chunk < kFill) continue;
        tensor.state = TensorState::kFailed;
        Drop(tensor);
      }
    }
    for (const int id : over) End(id);
  }
};

void Play(unsigned seed) {
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  ByteBudget device(kDevice);
  FakeTensors tensors;
  SteadyTime now = SteadyTime() + std::chrono::hours(1);
  int made_ids = 0;
  SessionStore store({.resident_limit = kResident,
                      .session_quota = kQuota,
                      .max_sessions = 1000,
                      .default_lease = absl::Seconds(kLease),
                      .max_lease = absl::Seconds(kLease),
                      .fill_timeout = absl::Seconds(kFill)},
                     {.memory = device,
                      .allocate = [&](std::int64_t bytes) { return tensors.Allocate(bytes); },
                      .now = [&] { return now; },
                      .new_id =
                          [&] {
                            SessionId id = {};
                            id[0] = static_cast<std::uint8_t>(++made_ids);
                            id[1] = static_cast<std::uint8_t>(made_ids >> 8);
                            return id;
                          }});
  Model model;
  std::vector<SessionId> ids;  // of all sessions ever, by the model's number
  struct Stream {
    SessionStore::Upload upload;
    int session, tensor;
  };
  std::vector<Stream> streams;
  struct User {
    SessionStore::Resident resident;
    int block;
  };
  std::vector<User> users;
  const auto reason_of = [](const absl::Status& status) { return status.ok() ? "" : DetailOf(status).reason; };

  for (int step = 0; step < 400; ++step) {
    SCOPED_TRACE(::testing::Message() << "step " << step);
    const int session = ids.empty() ? 0 : pick(static_cast<int>(ids.size()));
    const std::uint64_t number = static_cast<std::uint64_t>(pick(3));
    switch (ids.empty() ? 0 : pick(16)) {
      case 0: {
        if (model.sessions.size() >= 3) break;
        ids.push_back(store.Open(absl::ZeroDuration(), 0).value().id);
        model.sessions[static_cast<int>(ids.size()) - 1].expires = model.now + kLease;
        break;
      }
      case 1:
      case 2:
      case 3: {
        const std::int64_t bytes = pick(8) == 0 ? 0 : pick(12) == 0 ? 100 * kUnit : 1 + pick(4 * kUnit);
        const std::uint64_t version = static_cast<std::uint64_t>(pick(4));
        int made = -1;
        const std::string expected = model.Begin(session, number, bytes, version, made);
        const auto upload = store.BeginPut(ids[static_cast<std::size_t>(session)], number, Bytes(bytes), version);
        ASSERT_EQ(reason_of(upload.status()), expected) << upload.status();
        if (upload.ok()) streams.push_back({*upload, session, made});
        break;
      }
      case 4:
      case 5:
      case 6:
      case 7: {
        if (streams.empty()) break;
        const Stream& stream = streams[static_cast<std::size_t>(pick(static_cast<int>(streams.size())))];
        const std::int64_t size = model.tensors[static_cast<std::size_t>(stream.tensor)].bytes;
        // Most chunks lie on a grid, so that tensors fill up.
        const std::int64_t grid = size / 3 + 1;
        std::int64_t offset = grid * pick(3), bytes = std::min(grid, std::max<std::int64_t>(size - offset, 0));
        if (pick(5) == 0) {
          offset = pick(static_cast<int>(size) + 2);
          bytes = pick(static_cast<int>(grid) + 1);
        }
        const std::string chunk(static_cast<std::size_t>(bytes), 'x');
        const absl::Span<const std::byte> run(reinterpret_cast<const std::byte*>(chunk.data()), chunk.size());
        const std::string expected = model.Write(stream.session, stream.tensor, offset, bytes);
        const absl::Status status = store.Write(stream.upload, offset, {run});
        ASSERT_EQ(reason_of(status), expected) << status;
        break;
      }
      case 8: {
        const auto found = store.Find(ids[static_cast<std::size_t>(session)], number);
        if (!model.Enter(session)) {
          ASSERT_EQ(reason_of(found.status()), reason::kSessionNotFound);
          break;
        }
        const auto it = model.sessions[session].tensors.find(number);
        if (it == model.sessions[session].tensors.end()) {
          ASSERT_EQ(reason_of(found.status()), reason::kTensorNotFound);
          break;
        }
        ModelTensor& tensor = model.tensors[static_cast<std::size_t>(it->second)];
        ASSERT_EQ(found.ok(), tensor.state == TensorState::kReady) << found.status();
        if (!found.ok()) break;
        ++model.blocks[static_cast<std::size_t>(tensor.block)].users;
        users.push_back({*found, tensor.block});
        break;
      }
      case 9:
      case 10: {
        if (users.empty()) break;
        const auto user = users.begin() + pick(static_cast<int>(users.size()));
        --model.blocks[static_cast<std::size_t>(user->block)].users;
        users.erase(user);
        break;
      }
      case 11: {
        const auto freed = store.Delete(ids[static_cast<std::size_t>(session)], {number});
        ASSERT_EQ(freed.ok(), model.Enter(session));
        if (freed.ok()) {
          const auto there = model.sessions[session].tensors.find(number);
          if (there != model.sessions[session].tensors.end()) {
            std::uint64_t& deleted = model.sessions[session].deleted[number];
            deleted = std::max(deleted, model.tensors[static_cast<std::size_t>(there->second)].uploaded);
          }
          ASSERT_EQ(*freed, model.Remove(session, number));
        }
        break;
      }
      case 12: {
        if (pick(3) != 0) break;
        const auto freed = store.Close(ids[static_cast<std::size_t>(session)]);
        ASSERT_EQ(freed.ok(), model.Enter(session));
        if (freed.ok()) {
          ASSERT_EQ(*freed, model.End(session));
        }
        break;
      }
      case 13: {
        const int seconds = pick(5);
        model.now += seconds;
        now += std::chrono::seconds(seconds);
        break;
      }
      case 14: {
        model.Sweep();
        store.Sweep();
        ASSERT_EQ(store.use().sessions, static_cast<std::int64_t>(model.sessions.size()));
        break;
      }
      case 15: {
        // A result, which is a version later than any upload up to now.
        if (pick(2) == 0 && model.PublishWouldFit(session)) {
          const SessionId& id = ids[static_cast<std::size_t>(session)];
          auto result = store.NewResult(id, Bytes(kUnit));
          ASSERT_TRUE(result.ok()) << result.status();
          std::vector<std::pair<std::uint64_t, SessionStore::Result>> results;
          results.emplace_back(number, *std::move(result));
          ASSERT_TRUE(store.Publish(id, std::move(results)).ok());
          model.Publish(session, number);
          break;
        }
        if (streams.empty()) break;
        streams.erase(streams.begin() + pick(static_cast<int>(streams.size())));
        break;
      }
    }
    ASSERT_EQ(device.used(), model.Used());
    ASSERT_EQ(store.use().used, model.Used());
    const auto listing = store.List(ids.empty() ? SessionId{} : ids[static_cast<std::size_t>(session)]);
    ASSERT_EQ(listing.ok(), model.Enter(session)) << listing.status();
    if (!listing.ok()) continue;
    ASSERT_EQ(listing->used, model.Used(session));
    const ModelSession& expected = model.sessions[session];
    ASSERT_EQ(listing->tensors.size(), expected.tensors.size());
    for (const SessionStore::TensorFacts& facts : listing->tensors) {
      const ModelTensor& tensor = model.tensors[static_cast<std::size_t>(expected.tensors.at(facts.id))];
      ASSERT_EQ(facts.state, tensor.state);
      ASSERT_EQ(facts.version, tensor.version);
      ASSERT_EQ(facts.spec.bytes(), tensor.bytes);
      if (tensor.block >= 0) {
        ASSERT_EQ(facts.users, model.blocks[static_cast<std::size_t>(tensor.block)].users);
      }
    }
  }
  users.clear();
  streams.clear();
  now += std::chrono::hours(1);
  store.Sweep();
  EXPECT_EQ(device.used(), 0);
  EXPECT_EQ(tensors.alive(), 0);
  EXPECT_EQ(store.use().tensors, 0);
}

TEST(SessionStoreModel, EveryStoryEndsAsTheModelSays) {
  std::random_device device;
  for (int round = 0; round < 300 && !::testing::Test::HasFailure(); ++round) Play(device());
}

}  // namespace
}  // namespace kernd::core
