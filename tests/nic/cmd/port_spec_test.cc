// SPDX-License-Identifier: Apache-2.0

#include "nic/cmd/port_spec.h"

#include <string>

#include "absl/strings/match.h"
#include "tests/catch.h"

namespace dmakit::nic::cmd {
namespace {

TEST_CASE("a port is a backend, keys, and a wire that takes the rest") {
  const auto plain = ParsePort("--in", "enic,wire=null");
  REQUIRE(plain.ok());
  CHECK(plain->backend == "enic");
  CHECK(plain->keys.empty());
  CHECK(plain->wire == "null");

  const auto full = ParsePort("--in", "enic,hostile=7,mac=a=b,wire=gen:size=64,wire=2,count=3");
  REQUIRE(full.ok());
  CHECK(full->keys == std::map<std::string, std::string>{{"hostile", "7"}, {"mac", "a=b"}});
  CHECK(full->wire == "gen:size=64,wire=2,count=3");

  // Not a key of its own: part of another one's name or value.
  const auto other = ParsePort("--in", "enic,mywire=1,x=wire=2,wire=null");
  REQUIRE(other.ok());
  CHECK(other->keys == std::map<std::string, std::string>{{"mywire", "1"}, {"x", "wire=2"}});
  CHECK(ParsePort("--in", "enic,wire=")->wire == "");
}

TEST_CASE("a port without wire= is a NIC with a cable of its own") {
  const auto plain = ParsePort("--in", "e1000e");
  REQUIRE(plain.ok());
  CHECK(plain->backend == "e1000e");
  CHECK_FALSE(plain->wire.has_value());
  const auto keys = ParsePort("--in", "e1000e,pci=0000:00:04.0,mywire=1");
  REQUIRE(keys.ok());
  CHECK(keys->keys == std::map<std::string, std::string>{{"pci", "0000:00:04.0"}, {"mywire", "1"}});
  CHECK_FALSE(keys->wire.has_value());
}

TEST_CASE("malformed ports are named with what is missing") {
  struct Case {
    const char* text;
    const char* what;
  };
  const Case cases[] = {
      {"", "has no backend"},
      {"enicwire=null", "has no backend"},
      {"a=1", "has no backend"},
      {"enic,", "has an empty key"},
      {"wire=null", "has no backend"},
      {",wire=null", "has no backend"},
      {",a=1,wire=null", "has no backend"},
      {"a=1,wire=null", "has no backend"},
      {"enic,,wire=null", "has an empty key"},
      {"enic,a=1,,wire=null", "a KEY=VALUE must follow the last comma"},
      {"enic,a,wire=null", "\"a\" must be KEY=VALUE"},
      {"enic,a=1,a=2,wire=null", "key \"a\" is given twice"},
  };
  for (const Case& c : cases) {
    const auto port = ParsePort("--out", c.text);
    REQUIRE_FALSE(port.ok());
    INFO(port.status().message());
    CHECK(absl::StartsWith(port.status().message(), "--out: "));
    CHECK(absl::StrContains(port.status().message(), c.what));
  }
}

}  // namespace
}  // namespace dmakit::nic::cmd
