// SPDX-License-Identifier: Apache-2.0
//
// Vectors made by other code than ours, and how a backend's layouts are held against them, both
// ways: the fields of a vector encode to its bytes, and its bytes decode to its fields. Field
// values are unsigned decimals, bytes are hex. A layout is checked through an overload of Visit in
// the namespace of its type, which gives each field's name and place to a visitor.
#ifndef DMAKIT_TESTS_NIC_VECTORS_H_
#define DMAKIT_TESTS_NIC_VECTORS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "nic/descriptor_words.h"
#include "tests/catch.h"

namespace dmakit::nic {

using Fields = std::map<std::string, uint64_t>;
using Image = std::vector<std::byte>;

struct Vector {
  std::string structure;
  std::string name;
  Fields fields;
  Image bytes;
};

inline Image FromHex(const std::string& hex) {
  Image bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoul(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

inline std::vector<Vector> AllVectors(const std::string& path) {
  std::ifstream file(path);
  const nlohmann::json json = nlohmann::json::parse(file);
  std::vector<Vector> vectors;
  for (const nlohmann::json& v : json) {
    vectors.push_back({v["struct"], v["case"], v["fields"].get<Fields>(), FromHex(v["bytes"])});
  }
  return vectors;
}

inline std::vector<Vector> VectorsOf(const std::string& path, const std::string& structure) {
  const std::vector<Vector> all = AllVectors(path);
  std::vector<Vector> found;
  std::copy_if(all.begin(), all.end(), std::back_inserter(found),
               [&](const Vector& v) { return v.structure == structure; });
  REQUIRE_FALSE(found.empty());
  return found;
}

// A field is narrowed to its member's type, so a vector with a field we do not know fails here.
class Reader {
 public:
  explicit Reader(const Fields& fields) : fields_(fields) {}
  template <typename T>
  void operator()(const char* name, T& member) {
    seen_.insert(name);
    member = static_cast<T>(fields_.at(name));
  }
  bool all_seen() const { return seen_.size() == fields_.size(); }

 private:
  const Fields& fields_;
  std::set<std::string> seen_;
};

class Writer {
 public:
  template <typename T>
  void operator()(const char* name, T& member) {
    fields[name] = static_cast<uint64_t>(member);
  }
  Fields fields;
};

// `encode` makes the image of a value, `decode` the value of an image.
template <typename T, typename EncodeFn, typename DecodeFn>
void CheckBothWays(const Vector& v, EncodeFn encode, DecodeFn decode) {
  INFO(v.structure << " " << v.name);
  T value;
  Reader reader(v.fields);
  Visit(value, reader);
  REQUIRE(reader.all_seen());
  CHECK(encode(value) == v.bytes);

  T decoded = decode(v.bytes);
  Writer writer;
  Visit(decoded, writer);
  CHECK(writer.fields == v.fields);
}

// For entries of 16 bytes.
template <typename T, typename DecodeFn>
void CheckRingEntry(const Vector& v, DecodeFn decode) {
  CheckBothWays<T>(
      v,
      [](const T& value) {
        const auto bytes = ToBytes(Encode(value));
        return Image(bytes.begin(), bytes.end());
      },
      [&](const Image& image) {
        return decode(FromBytes(std::span<const std::byte, 16>(image.data(), 16)));
      });
}

}  // namespace dmakit::nic

#endif  // DMAKIT_TESTS_NIC_VECTORS_H_
