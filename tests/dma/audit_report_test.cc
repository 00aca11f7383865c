// SPDX-License-Identifier: Apache-2.0
//
// Reports themselves: text, JSON, history, bounds, the sink, and threads.
#include <atomic>
#include <cctype>
#include <set>
#include <thread>

#include "tests/dma/audit_testing.h"

namespace dmakit::dma {
namespace {

using testing::AuditRig;
using testing::Only;
using testing::Silent;

constexpr Direction kTo = Direction::kToDevice;
constexpr Direction kFrom = Direction::kFromDevice;

// Accepts exactly the JSON of RFC 8259, without checking numbers in depth.
class JsonReader {
 public:
  explicit JsonReader(std::string_view text) : rest_(text) {}
  bool Whole() { return Value() && (Space(), rest_.empty()); }

 private:
  void Space() {
    while (!rest_.empty() && (rest_[0] == ' ' || rest_[0] == '\n')) rest_.remove_prefix(1);
  }
  bool Take(std::string_view token) {
    Space();
    if (!rest_.starts_with(token)) return false;
    rest_.remove_prefix(token.size());
    return true;
  }
  bool String() {
    if (!Take("\"")) return false;
    while (!rest_.empty()) {
      const auto c = static_cast<unsigned char>(rest_[0]);
      rest_.remove_prefix(1);
      if (c == '"') return true;
      if (c < 0x20) return false;
      if (c != '\\') continue;
      if (rest_.empty()) return false;
      const char escape = rest_[0];
      rest_.remove_prefix(1);
      if (escape == 'u') {
        for (int i = 0; i < 4; ++i) {
          if (rest_.empty() || std::isxdigit(static_cast<unsigned char>(rest_[0])) == 0) {
            return false;
          }
          rest_.remove_prefix(1);
        }
      } else if (std::string_view("\"\\/bfnrt").find(escape) == std::string_view::npos) {
        return false;
      }
    }
    return false;
  }
  bool Number() {
    size_t n = 0;
    while (n < rest_.size() && (std::isdigit(static_cast<unsigned char>(rest_[n])) != 0 ||
                                (n == 0 && rest_[n] == '-'))) {
      ++n;
    }
    rest_.remove_prefix(n);
    return n > 0;
  }
  bool List(std::string_view end, bool named) {
    if (Take(end)) return true;
    do {
      if (named && (!String() || !Take(":"))) return false;
      if (!Value()) return false;
    } while (Take(","));
    return Take(end);
  }
  bool Value() {
    if (Take("{")) return List("}", true);
    if (Take("[")) return List("]", false);
    Space();
    if (rest_.starts_with("\"")) return String();
    return Take("true") || Take("false") || Take("null") || Number();
  }

  std::string_view rest_;
};

bool IsJson(const std::string& text) { return JsonReader(text).Whole(); }

TEST_CASE("Each class has a name of its own and a remedy") {
  std::set<std::string> names;
  for (int i = 1; i <= kAuditCodes; ++i) {
    const auto code = static_cast<AuditCode>(i);
    names.insert(std::string(Name(code)));
    CHECK(Remedy(code).size() > 20);
    CHECK(Remedy(code).back() == '.');
  }
  CHECK(names.size() == 31);
  CHECK(static_cast<int>(AuditCode::kReferenceCount) == 31);
  CHECK(static_cast<int>(AuditCode::kLeaked) == 23);
  CHECK(Name(static_cast<AuditCode>(32)) == "unknown");
}

TEST_CASE("JSON is well formed, with and without reports, whatever the names have in them") {
  AuditRig r;
  CHECK(IsJson(r.audit.Json()));
  CHECK(r.audit.Json() == "{\"errors\": 0, \"warnings\": 0, \"totals\": {}, \"reports\": []}");
  const std::string owner = "tx\"0\\\n\x01\xff end";
  Mapping m = r.Map(r.buffer.part(0, 100), kTo, owner);
  REQUIRE(m.SyncForCpu(0, 10).ok());
  REQUIRE(m.SyncForCpu(0, 10).ok());
  const std::string json = r.audit.Json();
  INFO(json);
  CHECK(IsJson(json));
  CHECK(json.find("\"owner\": \"tx\\\"0\\\\\\u000a\\u0001\\u00ff end\"") != std::string::npos);
  CHECK(json.find("\"totals\": {\"sync-for-cpu-of-to-device\": 2}") != std::string::npos);
  CHECK(json.find("\"code\": 20") != std::string::npos);
  CHECK(json.find('\n') == std::string::npos);
  CHECK(r.audit.reports()[0].owner == owner);
  // The reader itself refuses what is not JSON.
  CHECK_FALSE(IsJson("{\"a\": \"\n\"}"));
  CHECK_FALSE(IsJson("[1, ]"));
  CHECK_FALSE(IsJson(json + "}"));
}

TEST_CASE("Text: class, device, owner, mapping and remedy") {
  AuditRig r;
  Mapping m = r.Map(r.buffer.part(0, 100), kTo, "tx0");
  REQUIRE(m.SyncForCpu(0, 10).ok());
  const std::string text = ToText(r.audit.reports()[0]);
  INFO(text);
  const std::string first = text.substr(0, text.find('\n'));
  for (const char* part : {"audit 20", "sync-for-cpu-of-to-device", "'nic0'", "'tx0'"}) {
    CHECK(first.find(part) != std::string::npos);
  }
  CHECK(text.find("remedy: ") != std::string::npos);
  CHECK(text.find(ToString(Range{m.iova(), Bytes(100)})) != std::string::npos);
  CHECK(r.audit.Text().find("1 errors, 0 warnings") != std::string::npos);
}

TEST_CASE("The last 16 events of the mapping, oldest first, and no other's") {
  AuditRig r;
  Mapping m = r.Map(r.buffer.part(0, 100), kFrom, "rx0");
  Mapping other = r.Map(r.buffer.part(4096, 100), kFrom, "rx1");
  for (int i = 0; i < 10; ++i) {
    r.clock.Advance(Nanos{100});
    REQUIRE(m.SyncForCpu(i, 1).ok());
    REQUIRE(other.SyncForCpu(50, 1).ok());
    r.clock.Advance(Nanos{100});
    REQUIRE(m.SyncForDevice(i, 1).ok());
    REQUIRE(other.SyncForDevice(50, 1).ok());
  }
  REQUIRE(Silent(r.audit));
  REQUIRE(m.SyncForDevice(42, 1).ok());
  const AuditReport report = Only(r.audit, AuditCode::kSyncForDeviceOfFromDevice);
  REQUIRE(report.history.size() == kAuditHistory);
  for (size_t i = 0; i < kAuditHistory; ++i) {
    const AuditEvent& event = report.history[i];
    CHECK(event.range.base < m.iova() + Bytes(100));
    if (i > 0) CHECK(event.at >= report.history[i - 1].at);
    CHECK((event.what == AuditEvent::What::kSyncForDevice) == (i % 2 == 0 || i == 15));
  }
  CHECK(report.history.back().range == Range{m.iova() + Bytes(42), Bytes(1)});
  CHECK(report.history.front().at == Nanos{600});
}

TEST_CASE("A short history begins with the map") {
  AuditRig r;
  Mapping m = r.Map(r.buffer.part(0, 100), kTo, "tx0");
  REQUIRE(m.SyncForCpu(0, 1).ok());
  const auto history = r.audit.reports()[0].history;
  REQUIRE(history.size() == 2);
  CHECK(history[0].what == AuditEvent::What::kMapped);
  CHECK(history[0].range == Range{m.iova(), Bytes(100)});
}

TEST_CASE("Reports are bounded, totals are not, and the sink hears all") {
  std::vector<AuditCode> heard;
  AuditRig r({.audit = {.max_reports = 3,
                        .sink = [&](const AuditReport& report) { heard.push_back(report.code); }}});
  Mapping m = r.Map(r.buffer.part(0, 100), kTo, "tx0");
  for (int i = 0; i < 10; ++i) REQUIRE(m.SyncForCpu(0, 1).ok());
  CHECK(r.audit.reports().size() == 3);
  CHECK(r.audit.total(AuditCode::kSyncForCpuOfToDevice) == 10);
  CHECK(r.audit.errors() == 10);
  CHECK(heard.size() == 10);
  CHECK(IsJson(r.audit.Json()));
}

TEST_CASE("What is gone is remembered within a bound") {
  AuditRig r({.audit = {.max_retired = 2, .sample_one_in = 0}});
  std::vector<Iova> at;
  {
    std::vector<Mapping> live;
    for (int i = 0; i < 3; ++i) live.push_back(r.Map(r.buffer.part(i * 4096, 8), kFrom, "rx0"));
    for (Mapping& m : live) {
      at.push_back(m.iova());
      r.Unmap(std::move(m));
    }
  }
  for (const Iova address : at) CHECK_FALSE(r.DeviceWrites(address, 1));
  CHECK(r.audit.total(AuditCode::kAccessAfterUnmap) == 2);
  CHECK(r.audit.unexplained_faults() == 1);
}

TEST_CASE("Many mappings and all their mistakes are found among thousands of live ones") {
  AuditRig r;
  testing::Buffer large(4096 * 512);
  std::vector<Mapping> live;
  for (size_t i = 0; i < 2000; ++i) {
    live.push_back(r.Map(large.part(i * 1024, 1 + i % 960), kFrom, "rx" + std::to_string(i % 7)));
  }
  REQUIRE(Silent(r.audit));
  for (size_t i = 0; i < live.size(); i += 3) REQUIRE(live[i].SyncForCpu(0, 1).ok());
  for (Mapping& m : live) r.Unmap(std::move(m));
  CHECK(Silent(r.audit));
  CHECK(r.audit.live() == 0);
}

TEST_CASE("Two drivers, the device and a reader, each on a thread of its own") {
  std::atomic<uint64_t> heard{0};
  AuditRig r({.audit = {.max_reports = 16,
                        .sample_one_in = 5,
                        .checked = true,
                        .sink = [&](const AuditReport&) { heard.fetch_add(1); }},
              .policy = Policy::kDeferred});
  constexpr int kRounds = 2000;
  const auto drive = [&](size_t offset, std::string_view owner) {
    for (int i = 0; i < kRounds; ++i) {
      Mapping m = *r.nic->Map(r.buffer.part(offset, 256), kFrom, {.owner = owner});
      r.nic->observer()->OnPosted(*r.nic, {.range = {m.iova(), Bytes(256)}, .ring = owner});
      r.nic->observer()->OnCompleted(*r.nic, m.iova(), Bytes(256));
      (void)m.SyncForCpu(0, 256);
      if (i % 100 == 0) (void)m.SyncForCpu(0, 256);  // wrong
      (void)r.nic->Unmap(std::move(m));
    }
  };
  std::atomic<bool> stop{false};
  std::thread device([&] {
    // Where nothing is ever mapped.
    while (!stop.load()) (void)r.DeviceReads(Iova(0x6000'0000'0000), 1);
  });
  std::thread reader([&] {
    while (!stop.load()) {
      if (!IsJson(r.audit.Json())) std::abort();
      (void)r.audit.live();
    }
  });
  std::thread a([&] { drive(0, "rx0"); });
  std::thread b([&] { drive(8192, "rx1"); });
  a.join();
  b.join();
  stop.store(true);
  device.join();
  reader.join();
  CHECK(r.audit.total(AuditCode::kSyncWrongOwner) == 2 * kRounds / 100);
  CHECK(r.audit.errors() == heard.load());
  CHECK(r.audit.reports().size() == 16);
  CHECK(r.audit.live() == 0);
}

}  // namespace
}  // namespace dmakit::dma
