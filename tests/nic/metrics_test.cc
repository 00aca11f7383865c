// SPDX-License-Identifier: Apache-2.0

#include "nic/metrics.h"

#include <limits>
#include <set>
#include <string>

#include "nic/metric_tables.h"
#include "nic/metrics_json.h"
#include "nlohmann/json.hpp"
#include "tests/catch.h"
#include "tests/nic/prometheus.h"

namespace dmakit::nic {
namespace {

using testing::PrometheusReader;

struct Things {
  uint64_t things = 0;
  double ratio = 0;
};
constexpr Metric<Things> kThings[] = {
    {{"things", "n", MetricKind::kCounter, "things", "Back\\slash\nand line"}, &Things::things},
    {{"ratio", "ratio", MetricKind::kGauge, "1", "Ratio"}, &Things::ratio},
};
std::span<const Metric<Things>> ThingMetrics() { return kThings; }

constexpr Metric<Things> kBadName[] = {
    {{"no-dash", "n", MetricKind::kCounter, "things", "Things"}, &Things::things}};
constexpr Metric<Things> kSameName[] = {
    {{"new", "n", MetricKind::kCounter, "things", "Things"}, &Things::things},
    {{"things", "n", MetricKind::kCounter, "things", "Others"}, &Things::things}};

TEST_CASE("a snapshot reads each struct once, and sees what it is then") {
  MetricRegistry registry;
  Things things;
  int reads = 0;
  REQUIRE(registry
              .Register(ThingMetrics(), {},
                        [&] {
                          ++reads;
                          return things;
                        })
              .ok());
  CHECK(reads == 0);
  things.things = 1;
  CHECK(std::get<uint64_t>(registry.Snapshot().at(0).value) == 1);
  things = {.things = 2, .ratio = 0.5};
  const auto samples = registry.Snapshot();
  REQUIRE(samples.size() == 2);
  CHECK(std::get<uint64_t>(samples[0].value) == 2);
  CHECK(std::get<double>(samples[1].value) == 0.5);
  CHECK(reads == 2);
}

TEST_CASE("what a printer could not write is refused, and nothing of it stays") {
  MetricRegistry registry;
  const auto add = [&](std::span<const Metric<Things>> table, MetricLabels labels) {
    return registry.Register(table, {.labels = std::move(labels)}, [] { return Things{}; });
  };
  REQUIRE(add(kThings, {{"a", "1"}, {"b", "1"}}).ok());
  CHECK(add(kThings, {{"b", "1"}, {"a", "1"}}).code() == absl::StatusCode::kAlreadyExists);
  CHECK(add(kThings, {{"a", "1"}}).code() == absl::StatusCode::kInvalidArgument);
  CHECK(add(kSameName, {{"a", "2"}, {"b", "1"}}).code() == absl::StatusCode::kInvalidArgument);
  CHECK(add(kBadName, {}).code() == absl::StatusCode::kInvalidArgument);
  for (const char* label : {"", "1a", "a-b", "__a", "le", "quantile", "a:b"}) {
    INFO(label);
    CHECK(add(std::span(kSameName).first(1), {{label, "1"}}).code() ==
          absl::StatusCode::kInvalidArgument);
  }
  CHECK(add(std::span(kSameName).first(1), {{"a", "1"}, {"a", "2"}}).code() ==
        absl::StatusCode::kInvalidArgument);
  CHECK(registry.Snapshot().size() == 2);
  CHECK(add(kThings, {{"a", "1"}, {"b", "2"}}).ok());
  CHECK(registry.Snapshot().size() == 4);
}

TEST_CASE("Prometheus gets one block per name, whatever the order of registration") {
  MetricRegistry registry;
  const auto add = [&](const std::string& device, Things things) {
    REQUIRE(
        registry.Register(ThingMetrics(), {.labels = {{"device", device}}}, [=] { return things; })
            .ok());
  };
  add("a", {std::numeric_limits<uint64_t>::max(), 0.1});
  add("b\"\\\n\xff\xc3\xa4\xed\xa0\x80", {7, std::numeric_limits<double>::infinity()});
  const std::string text = PrometheusText(registry.Snapshot());
  CHECK(text ==
        "# HELP dmakit_things_total Back\\\\slash\\nand line (things)\n"
        "# TYPE dmakit_things_total counter\n"
        "dmakit_things_total{device=\"a\"} 18446744073709551615\n"
        "dmakit_things_total{device=\"b\\\"\\\\\\n\xef\xbf\xbd\xc3\xa4"
        "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"} 7\n"
        "# HELP dmakit_ratio Ratio (1)\n"
        "# TYPE dmakit_ratio gauge\n"
        "dmakit_ratio{device=\"a\"} 0.10000000000000001\n"
        "dmakit_ratio{device=\"b\\\"\\\\\\n\xef\xbf\xbd\xc3\xa4"
        "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"} +Inf\n");
  PrometheusReader reader;
  CHECK(reader.Read(text).empty());
  CHECK(reader.samples().size() == 4);
  CHECK(reader.samples().at({"dmakit_ratio", {{"device", "a"}}}) == 0.1);
}

TEST_CASE("the reader of the tests refuses what Prometheus would") {
  const std::string head = "# HELP a A (n)\n# TYPE a gauge\n";
  for (const std::string& text :
       {std::string("a 1\n"), head + "a 1", head + "b 1\n", head + "a  1\n", head + "a x\n",
        head + "a{b=\"1\"} 1\na{b=\"1\"} 2\n", head + "a{b=\"\\x\"} 1\n", head + "a{b=1} 1\n",
        head + "a{b=\"1\",} 1\n", head + head, std::string("# TYPE a gauge\n# HELP a A\n"),
        std::string("# HELP a A\n# TYPE a counter\n"), head + "a{b=\"1\n"}) {
    INFO(text);
    CHECK_FALSE(PrometheusReader().Read(text).empty());
  }
  CHECK(PrometheusReader().Read(head + "a{b=\"\\\\\\\"\\n\",c=\"\"} -1\na 2\n").empty());
}

TEST_CASE("text has one heading per set of labels") {
  MetricRegistry registry;
  for (const char* queue : {"0", "1"}) {
    REQUIRE(registry
                .Register(ThingMetrics(), {.labels = {{"device", "a"}, {"queue", queue}}},
                          [] {
                            return Things{3, 2.5};
                          })
                .ok());
  }
  ModelStats model{.violations = 9};
  REQUIRE(registry.Register(ModelMetrics(), {}, [&] { return model; }).ok());
  CHECK(PlainText(registry.Snapshot()) ==
        "device=a queue=0:\n     things: 3\n     ratio: 2.5\n"
        "device=a queue=1:\n     things: 3\n     ratio: 2.5\n"
        "all:\n     model_violations: 9\n");
}

TEST_CASE("JSON has each key in the object of its place, beside what is there") {
  MetricRegistry registry;
  const auto add = [&](const std::string& a, std::optional<std::string> json) {
    REQUIRE(registry
                .Register(ThingMetrics(), {{{"a", a}}, std::move(json)},
                          [] {
                            return Things{3, 2.5};
                          })
                .ok());
  };
  add("1", "");
  add("2", "/list/1/made");
  add("3", std::nullopt);
  nlohmann::ordered_json json = {{"before", 1}, {"list", {{{"x", 1}}, {{"y", 2}}}}};
  AddJson(registry.Snapshot(), json);
  CHECK(json.dump() ==
        R"({"before":1,"list":[{"x":1},{"y":2,"made":{"n":3,"ratio":2.5}}],"n":3,"ratio":2.5})");
}

TEST_CASE("a name has one meaning in the whole library") {
  std::set<std::string_view> names;
  std::set<std::string> exposed;
  for (const MetricInfo* info : LibraryMetrics()) {
    INFO(info->name);
    CHECK(names.insert(info->name).second);
    CHECK(exposed.insert(PrometheusName(*info)).second);
    CHECK_FALSE(info->key.empty());
    CHECK_FALSE(info->unit.empty());
    CHECK_FALSE(info->help.empty());
    CHECK(info->help.find('\n') == std::string_view::npos);
    CHECK(info->name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") ==
          std::string_view::npos);
    CHECK_FALSE(info->name.ends_with("_total"));
  }
}

// Structs of nothing but counters: no member without a line, no line twice.
template <typename Stats>
bool Covers(std::span<const Metric<Stats>> table) {
  std::set<std::string_view> keys;
  std::set<const void*> members;
  const Stats stats{};
  for (const Metric<Stats>& metric : table) {
    keys.insert(metric.info.key);
    std::visit([&](auto member) { members.insert(&(stats.*member)); }, metric.value);
  }
  return keys.size() == table.size() && members.size() == table.size();
}
template <typename Stats>
bool Complete(std::span<const Metric<Stats>> table) {
  return Covers(table) && table.size() * sizeof(uint64_t) == sizeof(Stats);
}

TEST_CASE("every counter has a line in its table") {
  CHECK(Complete(RxMetrics()));
  CHECK(Complete(TxMetrics()));
  CHECK(Complete(PagePoolMetrics()));
  CHECK(Complete(WireMetrics()));
  CHECK(Complete(DomainMetrics()));
  CHECK(Complete(DeviceMetrics()));
  CHECK(Complete(FlushQueueMetrics()));
  CHECK(Complete(IommuMetrics()));
  CHECK(Complete(ModelMetrics()));
  CHECK(Complete(AuditMetrics()));
  CHECK(Covers(AddressSpaceMetrics()));  // which has words, too
}

}  // namespace
}  // namespace dmakit::nic
