// SPDX-License-Identifier: Apache-2.0

#include "nic/wire/generator.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "nic/wire/memory_wire.h"
#include "tests/catch.h"

namespace dmakit::nic {
namespace {

std::unique_ptr<Generator> Make(std::string_view keys) {
  const auto options = Generator::Parse(keys);
  REQUIRE(options.ok());
  auto generator = Generator::Create(*options);
  REQUIRE(generator.ok());
  return *std::move(generator);
}

std::vector<Frame> Drain(Wire& wire) {
  std::vector<Frame> frames;
  while (auto frame = wire.Peek()) {
    frames.emplace_back(frame->begin(), frame->end());
    wire.Pop();
  }
  return frames;
}

uint32_t U16(const Frame& f, size_t at) { return (uint32_t(f[at]) << 8) | uint32_t(f[at + 1]); }
uint32_t U32(const Frame& f, size_t at) { return (U16(f, at) << 16) | U16(f, at + 2); }

// Adds up as a receiver does: over data and checksum the folded sum is 0xffff.
uint32_t Folded(const Frame& f, size_t from, size_t to, uint32_t sum = 0) {
  for (size_t i = from; i < to; ++i) {
    sum += (i - from) % 2 == 0 ? uint32_t(f[i]) << 8 : uint32_t(f[i]);
    sum = (sum & 0xffff) + (sum >> 16);
  }
  return sum;
}

void CheckFrame(const Frame& f, uint64_t n, uint32_t flow) {
  INFO("frame " << n << ", " << f.size() << " bytes");
  REQUIRE(f.size() >= 60);
  CHECK(U16(f, 12) == 0x0800);
  CHECK(U16(f, 14) == 0x4500);
  CHECK(U16(f, 16) == f.size() - 14);
  CHECK(f[23] == std::byte{17});
  CHECK(Folded(f, 14, 34) == 0xffff);
  CHECK(U32(f, 26) == 0xc6120000 + flow);  // 198.18.x.y
  CHECK(U32(f, 30) == 0xc6130000 + flow);  // 198.19.x.y
  CHECK(U16(f, 34) == 1024 + flow % 64000);
  CHECK(U16(f, 38) == f.size() - 34);
  CHECK(U16(f, 40) != 0);
  const uint32_t pseudo = Folded(f, 26, 34, 17 + U16(f, 38));
  CHECK(Folded(f, 34, f.size(), pseudo) == 0xffff);
  CHECK(((uint64_t{U32(f, 42)} << 32) | U32(f, 46)) == n);
}

TEST_CASE("generated frames are valid, numbered, and spread over the flows") {
  for (const char* pattern : {"counter", "zeros", "ones", "random"}) {
    const auto frames =
        Drain(*Make(std::string("size=60-200,count=500,flows=7,pattern=") + pattern));
    REQUIRE(frames.size() == 500);
    std::set<size_t> sizes;
    for (size_t n = 0; n < frames.size(); ++n) {
      CheckFrame(frames[n], n, n % 7);
      sizes.insert(frames[n].size());
    }
    CHECK(*sizes.begin() == 60);
    CHECK(*sizes.rbegin() == 200);
    CHECK(sizes.size() > 100);
  }
}

TEST_CASE("the largest and the smallest frame") {
  const auto large = Drain(*Make("size=65535,count=1"));
  CheckFrame(large.at(0), 0, 0);
  CHECK(large[0].size() == 65535);
  CheckFrame(Drain(*Make("size=60,count=1")).at(0), 0, 0);
}

TEST_CASE("no frame says that it has no UDP checksum") {
  // Over 65,536 consecutive numbers the sum takes every value.
  bool all = true;
  for (const Frame& f : Drain(*Make("size=60,count=66000,pattern=zeros"))) all &= U16(f, 40) != 0;
  CHECK(all);
}

TEST_CASE("the same keys give the same frames") {
  const char* keys = "size=60-1514,count=100,flows=3,pattern=random";
  CHECK(Drain(*Make(keys)) == Drain(*Make(keys)));
}

TEST_CASE("patterns fill the payload") {
  const Frame counter = Drain(*Make("size=400,count=1")).at(0);
  CHECK(counter[50] == std::byte{0});
  CHECK(counter[399] == std::byte(349));
  CHECK(Drain(*Make("size=100,count=1,pattern=zeros")).at(0)[99] == std::byte{0});
  CHECK(Drain(*Make("size=100,count=1,pattern=ones")).at(0)[99] == std::byte{0xff});
  const auto random = Drain(*Make("size=100,count=2,pattern=random"));
  CHECK(std::count(random[0].begin() + 50, random[0].end(), random[0][50]) < 10);
  CHECK_FALSE(std::equal(random[0].begin() + 50, random[0].end(), random[1].begin() + 50));
}

TEST_CASE("a shown frame stays until it is taken; counts follow") {
  const auto generator = Make("size=64,count=2");
  const auto first = generator->Peek();
  REQUIRE(first.has_value());
  CHECK(generator->Peek()->data() == first->data());
  CHECK(generator->stats().frames_to_nic == 0);
  generator->Pop();
  generator->Pop();  // nothing is shown: takes nothing
  CHECK(generator->stats().frames_to_nic == 1);
  CHECK_FALSE(generator->exhausted());
  CHECK(generator->Peek().has_value());
  generator->Pop();
  CHECK(generator->exhausted());
  CHECK_FALSE(generator->Peek().has_value());
  CHECK(generator->stats().bytes_to_nic == 128);
}

TEST_CASE("without a count it does not end") {
  const auto generator = Make("");
  for (int i = 0; i < 10'000; ++i) {
    REQUIRE(generator->Peek().has_value());
    generator->Pop();
  }
  CHECK_FALSE(generator->exhausted());
}

TEST_CASE("bad generator keys and values are refused by name") {
  struct Case {
    const char* keys;
    const char* message;
  };
  const Case cases[] = {
      {"sise=64", "wire gen: unknown key \"sise\"; the keys are size, count, flows, pattern"},
      {"size=59", "wire gen: size: \"59\" must be a number from 60 to 65535"},
      {"size=65536", "wire gen: size: \"65536\" must be a number from 60 to 65535"},
      {"size=", "wire gen: size: \"\" must be a number from 60 to 65535"},
      {"size=100-99", "wire gen: end of size range: \"99\" must be a number from 100 to 65535"},
      {"size=100-", "wire gen: end of size range: \"\" must be a number from 100 to 65535"},
      {"count=0", "wire gen: count: \"0\" must be a number from 1 to 18446744073709551614"},
      {"flows=0", "wire gen: flows: \"0\" must be a number from 1 to 65536"},
      {"flows=65537", "wire gen: flows: \"65537\" must be a number from 1 to 65536"},
      {"pattern=noise", "wire gen: pattern \"noise\" must be counter, zeros, ones or random"},
      {"size", "wire gen: \"size\" must be KEY=VALUE"},
      {"size=64,", "wire gen: a KEY=VALUE must follow the last comma"},
  };
  for (const Case& c : cases) {
    const auto options = Generator::Parse(c.keys);
    REQUIRE_FALSE(options.ok());
    CHECK(std::string(options.status().message()) == c.message);
  }
  CHECK_FALSE(Generator::Create({.size = 10, .max_size = 64}).ok());
  CHECK_FALSE(Generator::Create({.size = 64, .max_size = 60}).ok());
  CHECK_FALSE(Generator::Create({.size = 64, .max_size = 65536}).ok());
  CHECK_FALSE(Generator::Create({.flows = 0}).ok());
}

}  // namespace
}  // namespace dmakit::nic
