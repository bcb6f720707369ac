#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "client/cli/files/npy.h"
#include "client/cli/files/safetensors.h"
#include "client/cli/files/tensor_file.h"
#include "kernd/client/tensor.h"

namespace kernd::cli {
namespace {

using client::DataType;
using client::Tensor;

class FilesTest : public testing::Test {
 protected:
  FilesTest() {
    std::string name = (std::filesystem::temp_directory_path() / "kernd-files.XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  ~FilesTest() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return (folder_ / name).string(); }

  std::string Write(const std::string& name, const std::string& bytes) const {
    std::ofstream(Path(name), std::ios::binary) << bytes;
    return Path(name);
  }

  std::string Bytes(const std::string& name) const {
    std::ifstream stream(Path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }

  std::filesystem::path folder_;
};

Tensor Pattern(DataType dtype, std::vector<std::int64_t> shape) {
  absl::StatusOr<Tensor> tensor = Tensor::Allocate(dtype, std::move(shape));
  EXPECT_TRUE(tensor.ok()) << tensor.status();
  unsigned value = 1;
  for (std::byte& byte : tensor->mutable_bytes()) byte = static_cast<std::byte>(value = value * 29 + 7);
  return *std::move(tensor);
}

void ExpectSame(const absl::StatusOr<Tensor>& got, const Tensor& want, const std::string& where) {
  ASSERT_TRUE(got.ok()) << got.status() << ' ' << where;
  EXPECT_EQ(got->dtype(), want.dtype()) << where;
  EXPECT_EQ(got->shape(), want.shape()) << where;
  EXPECT_TRUE(std::ranges::equal(got->bytes(), want.bytes())) << where;
}

const std::vector<std::vector<std::int64_t>> kShapes = {{}, {1}, {0}, {7}, {3, 5}, {2, 0, 4}, {1, 2, 3, 4, 1, 1, 2, 1}};

TEST_F(FilesTest, NpyRoundTrip) {
  for (const DataType dtype : {DataType::kBool, DataType::kU8, DataType::kI8, DataType::kI32, DataType::kI64,
                               DataType::kF16, DataType::kF32, DataType::kF64}) {
    for (const auto& shape : kShapes) {
      const Tensor tensor = Pattern(dtype, shape);
      ASSERT_TRUE(WriteNpy(Path("x.npy"), tensor.view()).ok());
      ExpectSame(ReadNpy(Path("x.npy")), tensor, client::ToString(dtype, shape));
      EXPECT_EQ((Bytes("x.npy").size() - tensor.bytes().size()) % 64, 0u) << "data are aligned";
    }
  }
}

TEST_F(FilesTest, NpyHasNoBf16AndSaysSo) {
  const absl::Status status = WriteNpy(Path("x.npy"), Pattern(DataType::kBF16, {2}).view());
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("safetensors"), absl::string_view::npos) << status;
}

TEST_F(FilesTest, SafetensorsRoundTrip) {
  for (int type = static_cast<int>(DataType::kBool); type <= static_cast<int>(DataType::kF8E5M2); ++type) {
    for (const auto& shape : kShapes) {
      const auto dtype = static_cast<DataType>(type);
      const Tensor tensor = Pattern(dtype, shape);
      ASSERT_TRUE(WriteSafetensors(Path("x.safetensors"), "a \"name\"", tensor.view()).ok());
      ExpectSame(ReadSafetensors(Path("x.safetensors"), ""), tensor, client::ToString(dtype, shape));
      ExpectSame(ReadSafetensors(Path("x.safetensors"), "a \"name\""), tensor, client::ToString(dtype, shape));
    }
  }
}

TEST_F(FilesTest, TheNameOfTheFileDecides) {
  const Tensor tensor = Pattern(DataType::kF32, {2, 3});
  ASSERT_TRUE(WriteTensor(Path("x.npy"), "d", tensor.view()).ok());
  ExpectSame(ReadTensor(Path("x.npy")), tensor, "npy");
  ASSERT_TRUE(WriteTensor(Path("x.safetensors"), "d", tensor.view()).ok());
  ExpectSame(ReadTensor(Path("x.safetensors:d")), tensor, "named by default");
  ASSERT_TRUE(WriteTensor(Path("x.safetensors:other"), "d", tensor.view()).ok());
  ExpectSame(ReadTensor(Path("x.safetensors:other")), tensor, "named");
  EXPECT_EQ(ReadTensor(Path("x.safetensors:d")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReadTensor(Path("x.txt")).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadTensor(Path("absent.npy")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReadTensor(folder_.string() + "/.npy").status().code(), absl::StatusCode::kNotFound);
}

// Files of numpy itself: each version of the format, each type, each odd shape.
TEST_F(FilesTest, NumpyWrites) {
  const std::string script = R"(
import sys, numpy as np
folder = sys.argv[1]
def save(name, array, version=None):
    with open(folder + '/' + name + '.npy', 'wb') as f:
        np.lib.format.write_array(f, array, version=version)
for t in 'b1 u1 i1 i4 i8 f2 f4 f8'.split():
    save(t, np.arange(6).reshape(2, 3).astype(t))
save('scalar', np.float32(2.5).reshape(()))
save('empty', np.zeros((0, 4), np.float32))
for v in (1, 2, 3):
    save('v%d' % v, np.arange(4, dtype=np.float32), (v, 0))
save('fortran', np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)))
save('big', np.arange(4, dtype='>f4'))
save('int16', np.arange(4, dtype=np.int16))
save('struct', np.zeros(2, dtype=[('x', 'f4')]))
)";
  Write("make.py", script);
  if (std::system(("python3 " + Path("make.py") + " " + folder_.string() + " 2>/dev/null").c_str()) != 0) {
    GTEST_SKIP() << "python3 with numpy is not installed";
  }
  const std::vector<std::pair<std::string, DataType>> types = {
      {"b1", DataType::kBool}, {"u1", DataType::kU8},  {"i1", DataType::kI8},  {"i4", DataType::kI32},
      {"i8", DataType::kI64},  {"f2", DataType::kF16}, {"f4", DataType::kF32}, {"f8", DataType::kF64}};
  for (const auto& [name, dtype] : types) {
    const absl::StatusOr<Tensor> tensor = ReadNpy(Path(name + ".npy"));
    ASSERT_TRUE(tensor.ok()) << tensor.status();
    EXPECT_EQ(client::ToString(tensor->dtype(), tensor->shape()),
              client::ToString(dtype, std::vector<std::int64_t>{2, 3}));
  }
  EXPECT_EQ(ReadNpy(Path("i4.npy"))->values<std::int32_t>()[5], 5);
  EXPECT_EQ(ReadNpy(Path("f8.npy"))->values<double>()[4], 4.0);
  EXPECT_EQ(ReadNpy(Path("f2.npy"))->values<std::uint16_t>()[1], 0x3c00);
  EXPECT_EQ(ReadNpy(Path("scalar.npy"))->values<float>()[0], 2.5f);
  EXPECT_EQ(ReadNpy(Path("empty.npy"))->shape(), (std::vector<std::int64_t>{0, 4}));
  for (const char* name : {"v1.npy", "v2.npy", "v3.npy"}) {
    const absl::StatusOr<Tensor> tensor = ReadNpy(Path(name));
    ASSERT_TRUE(tensor.ok()) << tensor.status();
    EXPECT_EQ(tensor->values<float>()[3], 3.0f) << name;
  }
  for (const auto& [name, word] : std::vector<std::pair<std::string, std::string>>{
           {"fortran", "Fortran"}, {"big", "big-endian"}, {"int16", "i2"}, {"struct", "structured"}}) {
    const absl::Status status = ReadNpy(Path(name + ".npy")).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_NE(status.message().find(word), absl::string_view::npos) << status;
  }
}

// And numpy reads ours.
TEST_F(FilesTest, NumpyReads) {
  Write("check.py", "import sys, numpy as np\nassert np.load(sys.argv[1]).tolist() == [[1.5, -2.0, 0.25]]\n");
  if (std::system("python3 -c 'import numpy' 2>/dev/null") != 0) GTEST_SKIP() << "python3 with numpy is not installed";
  const std::vector<float> values = {1.5f, -2.0f, 0.25f};
  ASSERT_TRUE(WriteNpy(Path("ours.npy"), client::View(values, {1, 3})).ok());
  EXPECT_EQ(std::system(("python3 " + Path("check.py") + " " + Path("ours.npy")).c_str()), 0);
}

std::string Npy(const std::string& dict, const std::string& data) {
  std::string bytes = "\x93NUMPY";
  bytes += {'\x01', '\x00', static_cast<char>(dict.size() & 0xff), static_cast<char>(dict.size() >> 8)};
  return bytes + dict + data;
}

TEST_F(FilesTest, MalformedNpy) {
  const std::string good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n", data(8, 'x');
  ASSERT_TRUE(ReadNpy(Write("x.npy", Npy(good, data))).ok());
  const std::vector<std::pair<const char*, std::string>> files = {
      {"empty file", ""},
      {"magic alone", "\x93NUMPY"},
      {"another magic", "\x93NUMPX" + Npy(good, data).substr(6)},
      {"version 4",
       [&] {
         auto b = Npy(good, data);
         b[6] = 4;
         return b;
       }()},
      {"version 0",
       [&] {
         auto b = Npy(good, data);
         b[6] = 0;
         return b;
       }()},
      {"header past the end", Npy(good, "").substr(0, 30)},
      {"version 2 header of 4 GiB", std::string("\x93NUMPY\x02\x00\xff\xff\xff\xff", 12) + good},
      {"no dictionary", Npy("[1]\n", data)},
      {"not closed", Npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)", data)},
      {"text after it", Npy(good + "x", data)},
      {"no shape", Npy("{'descr': '<f4', 'fortran_order': False}", data)},
      {"shape twice", Npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'shape': (2,)}", data)},
      {"another key", Npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'x': 1}", data)},
      {"negative dimension", Npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-2,)}", data)},
      {"dimension past int64", Npy("{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775808,)}", data)},
      {"product past int64", Npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}", data)},
      {"product that wraps to 8 bytes",
       Npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387906,)}", data)},
      {"nine dimensions", Npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,2)}", data)},
      {"object array", Npy("{'descr': '|O', 'fortran_order': False, 'shape': (2,)}", data)},
      {"no number in the shape", Npy("{'descr': '<f4', 'fortran_order': False, 'shape': (x,)}", data)},
      {"a byte short", Npy(good, data.substr(1))},
      {"a byte long", Npy(good, data + 'x')},
  };
  for (const auto& [what, bytes] : files) {
    const absl::Status status = ReadNpy(Write("x.npy", bytes)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << what << ": " << status;
  }
  EXPECT_EQ(ReadNpy(folder_.string()).status().code(), absl::StatusCode::kInvalidArgument) << "a folder";
}

std::string Safetensors(const std::string& header, const std::string& data) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(header.size() >> (8 * i)));
  return bytes + header + data;
}

TEST_F(FilesTest, SafetensorsWithSeveralTensors) {
  const std::string header =
      R"({"__metadata__":{"made by":"a test"},"b":{"dtype":"F32","shape":[1],"data_offsets":[3,7]},)"
      R"("odd":{"dtype":"F4_NEW","shape":[6],"data_offsets":[0,3]},"c":{"dtype":"BF16","shape":[0,2],"data_offsets":[7,7]}})";
  const std::string path = Write("x.safetensors", Safetensors(header, std::string("xyz\x00\x00\x80\x3f", 7)));
  const absl::StatusOr<Tensor> b = ReadSafetensors(path, "b");
  ASSERT_TRUE(b.ok()) << b.status();
  EXPECT_EQ(b->values<float>()[0], 1.0f);
  EXPECT_TRUE(ReadSafetensors(path, "c").ok());
  const absl::Status odd = ReadSafetensors(path, "odd").status();
  EXPECT_EQ(odd.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(odd.message().find("F4_NEW"), absl::string_view::npos) << odd;
  const absl::Status which = ReadSafetensors(path, "").status();
  EXPECT_EQ(which.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(which.message().find("odd, b, c"), absl::string_view::npos) << which;
  EXPECT_EQ(ReadSafetensors(path, "d").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReadSafetensors(path, "__metadata__").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(FilesTest, MalformedSafetensors) {
  const auto entry = [](const std::string& name, const std::string& dtype, const std::string& shape,
                        const std::string& offsets) {
    return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
  };
  const std::string good = entry("a", "F32", "[2]", "[0,8]"), data(8, 'x');
  ASSERT_TRUE(ReadSafetensors(Write("x.safetensors", Safetensors("{" + good + "}", data)), "a").ok());
  const auto one = [&](const std::string& text, const std::string& body) {
    return Safetensors("{" + text + "}", body);
  };
  std::string deep = "{\"a\":";
  for (int i = 0; i < 100'000; ++i) deep += '[';
  const std::vector<std::pair<const char*, std::string>> files = {
      {"empty file", ""},
      {"seven bytes", "1234567"},
      {"header past the end", Safetensors("{" + good + "}", "").substr(0, 20)},
      {"header of 2^64 - 1", std::string(8, '\xff') + "{}"},
      {"header of 2^63", std::string(7, '\0') + "\x80{}"},
      {"no JSON", Safetensors("{,}", "")},
      {"an array", Safetensors("[]", "")},
      {"deep", Safetensors(deep, "")},
      {"a name twice", one(good + "," + good, data)},
      {"a key twice", one(R"("a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]})", data)},
      {"a key more", one(R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1})", data)},
      {"no object", one(R"("a":5)", "")},
      {"negative dimension", one(entry("a", "F32", "[-2]", "[0,8]"), data)},
      {"fraction", one(entry("a", "F32", "[2.0]", "[0,8]"), data)},
      {"dimension past int64", one(entry("a", "F32", "[18446744073709551615]", "[0,8]"), data)},
      {"product past int64", one(entry("a", "F32", "[4294967296,4294967296]", "[0,0]"), "")},
      {"product that wraps to 8", one(entry("a", "F32", "[4611686018427387906]", "[0,8]"), data)},
      {"one offset", one(entry("a", "F32", "[2]", "[8]"), data)},
      {"end before begin", one(entry("a", "F32", "[2]", "[8,0]"), data)},
      {"shape larger than data", one(entry("a", "F32", "[3]", "[0,8]"), data)},
      {"past the end", one(entry("a", "F32", "[4]", "[0,16]"), data)},
      {"bytes left over", one(good, data + "x")},
      {"gap at the start", one(entry("a", "F32", "[1]", "[4,8]"), data)},
      {"overlap", one(good + "," + entry("b", "F32", "[1]", "[4,8]"), data)},
      {"gap", one(entry("a", "U8", "[2]", "[0,2]") + "," + entry("b", "U8", "[2]", "[6,8]"), data)},
  };
  for (const auto& [what, bytes] : files) {
    const absl::Status status = ReadSafetensors(Write("x.safetensors", bytes), "a").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << what << ": " << status;
  }
}

TEST(TensorTest, BytesAreCounted) {
  using Shape = std::vector<std::int64_t>;
  EXPECT_EQ(client::TensorBytes(DataType::kF32, Shape{}), 4);
  EXPECT_EQ(client::TensorBytes(DataType::kF8E5M2, Shape{3, 5}), 15);
  EXPECT_EQ(client::TensorBytes(DataType::kF64, Shape{INT64_MAX, 0}), 0);
  EXPECT_EQ(client::TensorBytes(DataType::kF64, Shape{INT64_MAX}), std::nullopt);
  EXPECT_EQ(client::TensorBytes(DataType::kU8, Shape{INT64_MAX}), INT64_MAX);
  EXPECT_EQ(client::TensorBytes(DataType::kU8, Shape{-1, 0}), std::nullopt);
  EXPECT_EQ(client::TensorBytes(DataType::kU8, Shape(8, 1)), 1);
  EXPECT_EQ(client::TensorBytes(DataType::kU8, Shape(9, 1)), std::nullopt);
  EXPECT_EQ(client::TensorBytes(DataType::kUnspecified, Shape{}), std::nullopt);
  EXPECT_EQ(client::ParseDataType("f8e4m3"), DataType::kF8E4M3);
  EXPECT_EQ(client::ParseDataType("f8"), std::nullopt);
}

}  // namespace
}  // namespace kernd::cli
