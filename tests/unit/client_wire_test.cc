// The hand-written parts of the wire against protobuf's own: what the client sends must be the message of the schema,
// to the last byte, and what it reads must be what protobuf wrote.
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "client/src/decode.h"
#include "client/src/encode.h"
#include "kernd/client/error.h"
#include "kernd/v1/compute.pb.h"
#include "kernd/v1/device.pb.h"

namespace kernd::client {
namespace {

using google::protobuf::util::MessageDifferencer;

std::string Bytes(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string out;
  for (const grpc::Slice& slice : slices) out.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return out;
}

// The message in `pieces`, whose size must be what protobuf would need for it.
template <typename Message>
Message Parsed(const absl::StatusOr<Pieces>& pieces) {
  Message message;
  EXPECT_TRUE(pieces.ok()) << pieces.status();
  if (!pieces.ok()) return message;
  Loan loan;
  const std::string bytes = Bytes(pieces->Buffer(&loan));
  EXPECT_TRUE(loan.AllReturned());
  EXPECT_EQ(bytes.size(), pieces->size());
  EXPECT_EQ(bytes, Bytes(pieces->Buffer(nullptr)));
  EXPECT_TRUE(message.ParseFromString(bytes));
  EXPECT_EQ(message.ByteSizeLong(), bytes.size());
  return message;
}

std::vector<std::uint8_t> Pattern(std::size_t size, unsigned seed) {
  std::vector<std::uint8_t> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::uint8_t>(i * 31 + seed);
  return bytes;
}

v1::Tensor WireTensor(v1::DataType dtype, std::vector<std::int64_t> shape, const std::vector<std::uint8_t>& data) {
  v1::Tensor tensor;
  tensor.set_dtype(dtype);
  tensor.mutable_shape()->Add(shape.begin(), shape.end());
  tensor.set_data(data.data(), data.size());
  return tensor;
}

// 16 MiB - 1, so that lengths need four bytes; 3 bytes, which are copied; and none, which still is a tensor.
TEST(EncodeTest, MatmulWithEverything) {
  const auto a = Pattern((1 << 24) - 1, 1), b = Pattern(3, 2), c = Pattern(5000, 3), scale = Pattern(4096, 4);
  const std::vector<std::uint8_t> nothing;
  MatmulArgs args;
  args.a = ViewAs(DataType::kI8, a, {(1 << 24) - 1});
  args.b = ViewAs(DataType::kI8, b, {3, 1});
  args.c = ViewAs(DataType::kI8, c, {5000});
  args.bias = ViewAs(DataType::kF32, nothing, {0, 7});
  args.transpose_a = true;
  args.transpose_b = true;
  args.alpha = 0.0;
  args.beta = -1.5;
  args.activation = Activation::kSilu;
  args.a_scale = Scales{Scales::Kind::kBlock, 128, 64, ViewAs(DataType::kF32, scale, {32, 32})};
  args.b_scale = Scales{Scales::Kind::kTensor, 0, 0, {DataType::kF32, {}, std::as_bytes(std::span(scale)).first(4)}};
  args.numerics = Numerics::kBatchInvariant;
  args.kernel.tile = Tile{64, 32, -1};
  args.d_dtype = DataType::kF16;
  CallOptions options;
  options.request_id = "r-1";
  options.priority = -7;
  options.device = "cpu";

  v1::MatmulRequest want;
  want.mutable_options()->set_request_id("r-1");
  want.mutable_options()->set_priority(-7);
  want.mutable_options()->mutable_placement()->set_device_uuid("cpu");
  v1::MatmulOp& op = *want.mutable_matmul();
  *op.mutable_a() = WireTensor(v1::DATA_TYPE_I8, {(1 << 24) - 1}, a);
  *op.mutable_b() = WireTensor(v1::DATA_TYPE_I8, {3, 1}, b);
  *op.mutable_c() = WireTensor(v1::DATA_TYPE_I8, {5000}, c);
  *op.mutable_bias() = WireTensor(v1::DATA_TYPE_F32, {0, 7}, {});
  op.set_transpose_a(true);
  op.set_transpose_b(true);
  op.set_alpha(0.0);
  op.set_beta(-1.5);
  op.set_activation(v1::ACTIVATION_SILU);
  op.mutable_a_scale()->set_kind(v1::Scales::KIND_BLOCK);
  op.mutable_a_scale()->set_block_rows(128);
  op.mutable_a_scale()->set_block_k(64);
  *op.mutable_a_scale()->mutable_values() = WireTensor(v1::DATA_TYPE_F32, {32, 32}, scale);
  op.mutable_b_scale()->set_kind(v1::Scales::KIND_TENSOR);
  *op.mutable_b_scale()->mutable_values() = WireTensor(v1::DATA_TYPE_F32, {}, {scale.begin(), scale.begin() + 4});
  op.set_numerics(v1::NUMERICS_BATCH_INVARIANT);
  op.mutable_kernel()->mutable_tile()->set_m(64);
  op.mutable_kernel()->mutable_tile()->set_n(32);
  op.mutable_kernel()->mutable_tile()->set_k(-1);
  op.mutable_d()->set_dtype(v1::DATA_TYPE_F16);
  // Not printed: 16 MiB.
  EXPECT_TRUE(MessageDifferencer::Equals(Parsed<v1::MatmulRequest>(EncodeMatmul(args, options)), want));
}

AttentionArgs AttentionWithEverything(const std::vector<std::uint8_t>& data) {
  AttentionArgs args;
  args.layout = AttentionLayout::kBLHD;
  args.q = ViewAs(DataType::kF16, data, {1, 2, 4, 1024});
  args.k = args.v = args.q;
  args.scale = 0.0;
  args.causal = true;
  args.alignment = MaskAlignment::kBottomRight;
  args.window_left = 0;
  args.window_right = 3;
  args.softcap = 30.0;
  args.mask = TensorView{DataType::kBool, {1, 1, 1, 2}, std::as_bytes(std::span(data)).first(2)};
  args.bias = TensorView{DataType::kF32, {1, 4, 2, 2}, std::as_bytes(std::span(data)).first(64)};
  args.alibi_slopes = {0.5f, 0.25f, 0.0f, -1.0f};
  args.sinks = {1, 2, 3, 4};
  args.q_lengths = {2};
  args.kv_lengths = {1};
  args.q_offsets = {0, 2};
  args.kv_offsets = {0, 300};
  args.q_scale = {1};
  args.k_scale = {2};
  args.v_scale = {3, 4};
  args.numerics = Numerics::kTf32;
  args.kernel.name = "attention_f16_cpu_blocked";
  args.o_dtype = DataType::kF32;
  args.want_lse = true;
  return args;
}

void FillOp(const std::vector<std::uint8_t>& data, bool with_data, v1::AttentionOp& op) {
  const auto tensor = [&](v1::DataType dtype, std::vector<std::int64_t> shape, std::size_t bytes) {
    v1::Tensor out = WireTensor(dtype, shape, {data.begin(), data.begin() + static_cast<std::ptrdiff_t>(bytes)});
    if (!with_data) out.clear_data();
    return out;
  };
  op.set_layout(v1::ATTENTION_LAYOUT_BLHD);
  *op.mutable_q() = *op.mutable_k() = *op.mutable_v() = tensor(v1::DATA_TYPE_F16, {1, 2, 4, 1024}, data.size());
  op.set_scale(0.0);
  op.set_causal(true);
  op.set_alignment(v1::MASK_ALIGNMENT_BOTTOM_RIGHT);
  op.set_window_left(0);
  op.set_window_right(3);
  op.set_softcap(30.0);
  *op.mutable_mask() = tensor(v1::DATA_TYPE_BOOL, {1, 1, 1, 2}, 2);
  *op.mutable_bias() = tensor(v1::DATA_TYPE_F32, {1, 4, 2, 2}, 64);
  for (const float slope : {0.5f, 0.25f, 0.0f, -1.0f}) op.add_alibi_slopes(slope);
  for (const float sink : {1.f, 2.f, 3.f, 4.f}) op.add_sinks(sink);
  op.add_q_lengths(2);
  op.add_kv_lengths(1);
  op.add_q_offsets(0);
  op.add_q_offsets(2);
  op.add_kv_offsets(0);
  op.add_kv_offsets(300);
  op.add_q_scale(1);
  op.add_k_scale(2);
  op.add_v_scale(3);
  op.add_v_scale(4);
  op.set_numerics(v1::NUMERICS_TF32);
  op.mutable_kernel()->set_name("attention_f16_cpu_blocked");
  op.mutable_o()->set_dtype(v1::DATA_TYPE_F32);
  op.set_want_lse(true);
}

TEST(EncodeTest, AttentionWithEverything) {
  const auto data = Pattern(1 * 2 * 4 * 1024 * 2, 5);
  v1::AttentionRequest want;
  FillOp(data, /*with_data=*/true, *want.mutable_attention());
  const auto got = Parsed<v1::AttentionRequest>(EncodeAttention(AttentionWithEverything(data), {}));
  EXPECT_TRUE(MessageDifferencer::Equals(got, want));
}

TEST(EncodeTest, APlanHasShapesAndNoData) {
  const auto data = Pattern(1 * 2 * 4 * 1024 * 2, 5);
  v1::PlanRequest want;
  FillOp(data, /*with_data=*/false, *want.add_steps()->mutable_attention());
  AttentionArgs args = AttentionWithEverything(data);
  args.q.data = {};
  const auto got = Parsed<v1::PlanRequest>(EncodePlan(args, {}));
  EXPECT_TRUE(MessageDifferencer::Equals(got, want)) << got.DebugString();
}

TEST(EncodeTest, AbsentOptionsStayAbsent) {
  MatmulArgs args;
  args.a = args.b = TensorView{DataType::kF32, {1, 0}, {}};
  const auto got = Parsed<v1::MatmulRequest>(EncodeMatmul(args, {}));
  EXPECT_FALSE(got.has_options());
  EXPECT_FALSE(got.matmul().has_alpha() || got.matmul().has_beta() || got.matmul().has_c() || got.matmul().has_bias() ||
               got.matmul().has_a_scale() || got.matmul().has_kernel() || got.matmul().has_d());
  EXPECT_EQ(got.matmul().a().place_case(), v1::Tensor::kData) << "an empty tensor is inline all the same";
}

TEST(EncodeTest, WhatCannotBeSentIsRefusedWithItsField) {
  const std::vector<float> values(6);
  const auto field = [](const MatmulArgs& args) { return DetailsOf(EncodeMatmul(args, {}).status()).field; };
  MatmulArgs good;
  good.a = good.b = View(values, {2, 3});
  EXPECT_EQ(field(good), "");

  MatmulArgs args = good;
  args.a.data = args.a.data.first(23);
  EXPECT_EQ(field(args), "matmul.a");
  EXPECT_EQ(EncodeMatmul(args, {}).status().message(), "matmul.a is 23 bytes: F32[2,3] has 24");
  args = good;
  args.b.shape = {-2, -3};
  EXPECT_EQ(field(args), "matmul.b");
  args = good;
  args.b.shape = {INT64_MAX, 3};
  EXPECT_EQ(field(args), "matmul.b");
  args = good;
  args.c = TensorView{};
  EXPECT_EQ(field(args), "matmul.c");
  args = good;
  args.b_scale = Scales{Scales::Kind::kRow, 0, 0, View(values, {7})};
  EXPECT_EQ(field(args), "matmul.b_scale.values");
  args = good;
  args.kernel = {"some_kernel", Tile{1, 1, 1}};
  EXPECT_EQ(field(args), "matmul.kernel");
}

// As gRPC delivers them: cut at any place.
grpc::ByteBuffer Cut(const std::string& bytes, std::size_t part) {
  std::vector<grpc::Slice> slices;
  for (std::size_t at = 0; at < bytes.size(); at += part) slices.emplace_back(bytes.substr(at, part));
  if (slices.empty()) slices.emplace_back();
  return grpc::ByteBuffer(slices.data(), slices.size());
}

v1::AttentionReply WireReply() {
  v1::AttentionReply reply;
  reply.mutable_timing()->set_total_us(12.5);
  reply.mutable_timing()->set_encode_us(0.5);
  reply.mutable_memory()->set_peak_bytes(1 << 20);
  reply.mutable_memory()->set_naive_bytes(-1);
  reply.mutable_kernel()->set_name("attention_f32_cpu_blocked");
  reply.mutable_kernel()->mutable_tile()->set_n(16);
  reply.mutable_kernel()->set_reason("rule");
  *reply.mutable_o() = WireTensor(v1::DATA_TYPE_F16, {2, 350}, Pattern(1400, 6));
  *reply.mutable_lse() = WireTensor(v1::DATA_TYPE_F32, {2, 5}, Pattern(40, 7));
  return reply;
}

TEST(DecodeTest, AReplyCutAnywhere) {
  const std::string bytes = WireReply().SerializeAsString();
  for (const std::size_t part : {std::size_t{1}, std::size_t{7}, std::size_t{64}, bytes.size()}) {
    const absl::StatusOr<AttentionReply> reply = DecodeAttention(Cut(bytes, part));
    ASSERT_TRUE(reply.ok()) << reply.status() << ", parts of " << part;
    EXPECT_EQ(ToString(reply->o.dtype(), reply->o.shape()), "F16[2,350]");
    EXPECT_EQ(ToString(reply->lse.dtype(), reply->lse.shape()), "F32[2,5]");
    const auto o = reply->o.bytes();
    const auto want = Pattern(1400, 6);
    EXPECT_EQ(std::vector<std::byte>(o.begin(), o.end()),
              std::vector<std::byte>(reinterpret_cast<const std::byte*>(want.data()),
                                     reinterpret_cast<const std::byte*>(want.data()) + want.size()));
    EXPECT_EQ(reply->timing.total_us, 12.5);
    EXPECT_EQ(reply->timing.encode_us, 0.5);
    EXPECT_EQ(reply->memory.peak_bytes, 1 << 20);
    EXPECT_EQ(reply->memory.naive_bytes, -1);
    EXPECT_EQ(reply->kernel.name, "attention_f32_cpu_blocked");
    EXPECT_EQ(reply->kernel.tile, (Tile{0, 16, 0}));
    EXPECT_EQ(reply->kernel.reason, "rule");
  }
}

TEST(DecodeTest, FieldsThatALaterDaemonAddsAreIgnored) {
  std::string bytes = WireReply().SerializeAsString();
  bytes += std::string("\xa2\x06\x03xyz", 6);                            // field 100: bytes
  bytes += std::string("\x98\x06\x05", 3);                               // field 99: varint
  bytes += std::string("\x95\x06\x01\x02\x03\x04", 6);                   // field 98: fixed32
  bytes += std::string("\x91\x06\x01\x02\x03\x04\x05\x06\x07\x08", 10);  // field 98: fixed64
  const absl::StatusOr<AttentionReply> reply = DecodeAttention(Cut(bytes, 16));
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->o.bytes().size(), 1400u);
  EXPECT_TRUE(DecodeMatmul(Cut(WireReply().SerializeAsString(), 9)).ok()) << "field 14 is none of a matmul's";
}

TEST(DecodeTest, APlanOfOneStepHasOneStep) {
  v1::PlanReply plan;
  EXPECT_EQ(DetailsOf(DecodePlan(Cut(plan.SerializeAsString(), 9)).status()).reason, "BAD_REPLY");
  v1::PlanReply::Step& step = *plan.add_steps();
  step.mutable_memory()->set_peak_bytes(77);
  step.mutable_kernel()->set_name("k");
  *step.add_results() = WireTensor(v1::DATA_TYPE_BF16, {3, 4}, {});
  const absl::StatusOr<PlanReply> reply = DecodePlan(Cut(plan.SerializeAsString(), 9));
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->memory.peak_bytes, 77);
  EXPECT_EQ(reply->kernel.name, "k");
  ASSERT_EQ(reply->results.size(), 1u);
  EXPECT_EQ(ToString(reply->results[0].dtype, reply->results[0].shape), "BF16[3,4]");
}

TEST(DecodeTest, NoPrefixOfAReplyIsTakenForAnother) {
  const std::string bytes = WireReply().SerializeAsString();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const absl::StatusOr<AttentionReply> reply = DecodeAttention(Cut(bytes.substr(0, size), 50));
    ASSERT_FALSE(reply.ok()) << size;
    EXPECT_EQ(DetailsOf(reply.status()).reason, "BAD_REPLY") << size;
  }
}

TEST(DecodeTest, ATensorMustHaveTheBytesOfItsShape) {
  v1::MatmulReply reply;
  *reply.mutable_d() = WireTensor(v1::DATA_TYPE_F32, {2, 3}, Pattern(23, 0));
  EXPECT_EQ(DetailsOf(DecodeMatmul(Cut(reply.SerializeAsString(), 99)).status()).reason, "BAD_REPLY");
  *reply.mutable_d() = WireTensor(static_cast<v1::DataType>(77), {2, 3}, Pattern(24, 0));
  EXPECT_EQ(DetailsOf(DecodeMatmul(Cut(reply.SerializeAsString(), 99)).status()).reason, "BAD_REPLY");
  *reply.mutable_d() = WireTensor(v1::DATA_TYPE_F32, {0, 3}, {});
  EXPECT_TRUE(DecodeMatmul(Cut(reply.SerializeAsString(), 99)).ok());
}

// A length of 2^32 - 1 in front of nothing must not be allocated.
TEST(DecodeTest, ALengthIsNotBelieved) {
  const std::string data = "\x7a\xff\xff\xff\xff\x0f";  // field 15 of a Tensor, 2^32 - 1 bytes
  const std::string reply = std::string("\x7a\x06", 2) + data;
  EXPECT_EQ(DetailsOf(DecodeMatmul(Cut(reply, 99)).status()).reason, "BAD_REPLY");
}

}  // namespace
}  // namespace kernd::client
