// SPDX-License-Identifier: Apache-2.0

#include "nic/cmd/options.h"

#include <string>

#include "absl/strings/match.h"
#include "tests/catch.h"

namespace dmakit::nic::cmd {
namespace {

ForwardText Minimal() {
  ForwardText text;
  text.in = "enic,wire=gen:size=64,count=10";
  text.out = "enic,wire=null";
  return text;
}

TEST_CASE("defaults") {
  const auto o = ParseForward(Minimal());
  REQUIRE(o.ok());
  CHECK(o->in.wire == "gen:size=64,count=10");
  CHECK(o->out.wire == "null");
  CHECK_FALSE(o->count.has_value());
  CHECK_FALSE(o->duration.has_value());
  CHECK(o->burst == 32);
  CHECK(o->queues == 1);
  CHECK(o->threads == 0);
  CHECK_FALSE(o->both);
  CHECK(o->ring == 512);
  CHECK(o->mtu == 9000);
  CHECK_FALSE(o->page_order.has_value());
  CHECK(o->policy == dma::Policy::kPersistent);
  CHECK_FALSE(o->stats_file.has_value());
}

TEST_CASE("every option is read") {
  ForwardText text = Minimal();
  text.count = "5";
  text.seconds = "1.5";
  text.burst = "512";
  text.queues = "4";
  text.threads = "3";
  text.ring = "4096";
  text.mtu = "68";
  text.page_order = "9";
  text.policy = "strict";
  text.stats = "s.json";
  const auto o = ParseForward(text);
  REQUIRE(o.ok());
  CHECK(o->count == 5);
  CHECK(o->duration == dma::Nanos{1'500'000'000});
  CHECK(o->burst == 512);
  CHECK(o->queues == 4);
  CHECK(o->threads == 3);
  CHECK(o->ring == 4096);
  CHECK(o->mtu == 68);
  CHECK(o->page_order == 9u);
  CHECK(o->policy == dma::Policy::kStrict);
  CHECK(o->stats_file == "s.json");
  text.policy = "deferred";
  CHECK(ParseForward(text)->policy == dma::Policy::kDeferred);
}

TEST_CASE("bad values are named with rule and remedy") {
  struct Case {
    std::optional<std::string> ForwardText::*option;
    const char* value;
    const char* message;
  };
  const Case cases[] = {
      {&ForwardText::mtu, "67",
       "--mtu: \"67\" must be a number from 68 to 9000; leave it out for 9000"},
      {&ForwardText::mtu, "9001", "--mtu: \"9001\" must be a number from 68 to 9000"},
      {&ForwardText::queues, "0", "--queues: \"0\" must be a number from 1 to 64"},
      {&ForwardText::queues, "65", "--queues: \"65\" must be a number from 1 to 64"},
      {&ForwardText::threads, "0", "--threads: \"0\" must be a number from 1 to 1; raise --queues"},
      {&ForwardText::threads, "2", "--threads: \"2\" must be a number from 1 to 1; raise --queues"},
      {&ForwardText::ring, "-48", "--ring: \"-48\" must be a number from 1 to 4294967295"},
      {&ForwardText::ring, "4294967296", "--ring: \"4294967296\" must be a number"},
      {&ForwardText::burst, "0", "--burst: \"0\" must be a number from 1 to 512"},
      {&ForwardText::burst, "513", "--burst: \"513\" must be a number from 1 to 512"},
      {&ForwardText::page_order, "10", "--page-order: \"10\" must be a number from 0 to 9"},
      {&ForwardText::page_order, "30", "--page-order: \"30\" must be a number from 0 to 9"},
      {&ForwardText::count, "0", "--count: \"0\" must be a number from 1 to"},
      {&ForwardText::count, "", "--count: \"\" must be a number from 1 to"},
      {&ForwardText::seconds, "0", "--seconds: \"0\" must be a number from 0.001 to"},
      {&ForwardText::seconds, "-1", "--seconds: \"-1\" must be a number from 0.001 to"},
      {&ForwardText::seconds, "nan", "--seconds: \"nan\" must be a number"},
      {&ForwardText::seconds, "inf", "--seconds: \"inf\" must be a number"},
      {&ForwardText::seconds, "1e3", "--seconds: \"1e3\" must be a number"},
      {&ForwardText::seconds, "1000000001", "--seconds: \"1000000001\" must be a number"},
      {&ForwardText::policy, "lazy",
       "--policy: \"lazy\" must be persistent, deferred or strict; leave it out for persistent"},
      {&ForwardText::stats, "", "--stats: \"\" must be the path of a file"},
      {&ForwardText::in, ",wire=null", "--in: \",wire=null\" has no backend"},
      {&ForwardText::in, "enic,wire=tape:x", "--in: wire \"tape:x\": must be one of"},
      {&ForwardText::in, "enic,wire=gen:size=1", "--in: wire gen: size: \"1\" must be"},
      {&ForwardText::out, "enic,wire=gen:size=64", "--out: wire gen: makes frames"},
  };
  for (const Case& c : cases) {
    ForwardText text = Minimal();
    text.*c.option = c.value;
    const auto o = ParseForward(text);
    REQUIRE_FALSE(o.ok());
    INFO(o.status().message());
    CHECK(absl::StartsWith(o.status().message(), c.message));
  }
}

TEST_CASE("both directions need wires that have two") {
  ForwardText text;
  text.both = true;
  text.in = "enic,wire=tap:tap0";
  text.out = "enic,wire=null";
  REQUIRE(ParseForward(text).ok());
  CHECK(ParseForward(text)->both);
  text.in = "enic,wire=gen:size=64";
  CHECK(absl::StartsWith(ParseForward(text).status().message(), "--in: wire gen: goes one way"));
  text.in = "enic,wire=tap:a/b";
  CHECK(absl::StartsWith(ParseForward(text).status().message(), "--in: wire tap: \"a/b\" is no"));
  text.in.reset();
  CHECK(absl::StartsWith(ParseForward(text).status().message(),
                         "--in: is missing; give a port, as in --in=enic,wire=tap:tap0"));
}

TEST_CASE("both ports are required") {
  ForwardText text = Minimal();
  text.out.reset();
  CHECK(absl::StartsWith(ParseForward(text).status().message(), "--out: is missing"));
  text.in.reset();
  CHECK(absl::StartsWith(ParseForward(text).status().message(), "--in: is missing"));
}

}  // namespace
}  // namespace dmakit::nic::cmd
