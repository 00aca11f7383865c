// SPDX-License-Identifier: Apache-2.0

#include "nic/wire/spec.h"

#include <string>

#include "tests/catch.h"

namespace dmakit::nic {
namespace {

std::string Error(const absl::Status& status) { return std::string(status.message()); }

TEST_CASE("keys are split at commas and at the first equals sign") {
  const auto keys = ParseKeys("x", "a=1,b=2=3,c=");
  REQUIRE(keys.ok());
  CHECK(*keys == std::map<std::string, std::string>{{"a", "1"}, {"b", "2=3"}, {"c", ""}});
  CHECK(ParseKeys("x", "")->empty());
}

TEST_CASE("malformed keys are named") {
  CHECK(Error(ParseKeys("x", "a=1,b").status()) == "x: \"b\" must be KEY=VALUE");
  CHECK(Error(ParseKeys("x", "=1").status()) == "x: \"=1\" must be KEY=VALUE");
  CHECK(Error(ParseKeys("x", "a=1,,b=2").status()) == "x: \"\" must be KEY=VALUE");
  CHECK(Error(ParseKeys("x", ",").status()) == "x: \"\" must be KEY=VALUE");
  CHECK(Error(ParseKeys("x", "a=1,").status()) == "x: a KEY=VALUE must follow the last comma");
  CHECK(Error(ParseKeys("x", "a=1,a=1").status()) ==
        "x: key \"a\" is given twice; leave one of them out");
}

TEST_CASE("numbers are decimal and bounded") {
  CHECK(*ParseNumber("n", "0", 0, 5) == 0);
  CHECK(*ParseNumber("n", "5", 0, 5) == 5);
  CHECK(*ParseNumber("n", "18446744073709551615", 0, ~uint64_t{0}) == ~uint64_t{0});
  for (const char* bad : {"", "6", "-1", "+1", " 1", "1 ", "1x", "0x1", "1.0", "1e0",
                          "18446744073709551616", "99999999999999999999999"}) {
    INFO(bad);
    CHECK_FALSE(ParseNumber("n", bad, 0, 5).ok());
  }
  CHECK(Error(ParseNumber("--mtu", "67", 68, 9000).status()) ==
        "--mtu: \"67\" must be a number from 68 to 9000");
}

TEST_CASE("what is quoted stays on one line") {
  CHECK(Quote("a\nb\"c") == "\"a\\nb\\\"c\"");
  CHECK(Quote("naïve") == "\"naïve\"");
}

}  // namespace
}  // namespace dmakit::nic
