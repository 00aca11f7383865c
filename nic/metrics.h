// SPDX-License-Identifier: Apache-2.0
//
// Metrics: what the counters of this library are called, for whoever shows them. A table says it
// once per struct of counters (metric_tables.h); a MetricRegistry holds which structs a program has
// and how each is read; a snapshot of it is printed as text, as JSON (metrics_json.h) or for
// Prometheus. Nothing here counts anything.
//
//   MetricRegistry registry;
//   registry.Register(RxMetrics(), {.labels = {{"device", "enic0"}, {"queue", "0"}}},
//                     [&] { return port.stats().queues[0].rx; });
//   serve(PrometheusText(registry.Snapshot()));
//
// A name says what is counted, labels say where: device, queue, pool and class are never part of a
// name. Names are Linux's and ethtool's where the event is the same.
//
// Threads: a registry is filled by one thread; afterwards Snapshot may be called from any, if what
// the readers touch allows it (the library's stats() calls do).
#ifndef DMAKIT_NIC_METRICS_H_
#define DMAKIT_NIC_METRICS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"

namespace dmakit::nic {

enum class MetricKind : uint8_t {
  kCounter,  // monotonic
  kGauge,    // a value "now", or a peak
};

struct MetricInfo {
  std::string_view name{};  // lower case, digits and _; one meaning in the whole library
  std::string_view key{};   // the same within its JSON object, where what it belongs to is known
  MetricKind kind = MetricKind::kCounter;
  std::string_view unit{};  // of what there are so many: "packets", "bytes"
  std::string_view help{};  // one line
};

template <typename Stats>
struct Metric {
  MetricInfo info{};
  std::variant<uint64_t Stats::*, double Stats::*> value{};
};

using MetricNumber = std::variant<uint64_t, double>;
using MetricLabels = std::vector<std::pair<std::string, std::string>>;

// Which one of several alike.
struct MetricPlace {
  MetricLabels labels{};
  // The object of the JSON document that its keys are in, as a JSON pointer ("/ports/0/wire";
  // empty: the top). nullopt: left out there.
  std::optional<std::string> json{};
};

struct MetricSample {
  const MetricInfo* info = nullptr;  // in its table
  std::shared_ptr<const MetricPlace> place{};
  MetricNumber value{};
};

class MetricRegistry {
 public:
  // `read` is called once per Snapshot. The table lives as long as the registry and its snapshots.
  //
  // On failure nothing is registered. InvalidArgument: a name or label that no printer could write,
  // or that means something else already (other labels, another table). AlreadyExists: the same
  // name with the same labels.
  template <typename Stats>
  absl::Status Register(std::span<const Metric<Stats>> table, MetricPlace place,
                        std::type_identity_t<std::function<Stats()>> read) {
    std::vector<const MetricInfo*> infos;
    for (const Metric<Stats>& metric : table) infos.push_back(&metric.info);
    return Add(std::move(infos), std::move(place), [table, read = std::move(read)] {
      const Stats stats = read();
      std::vector<MetricNumber> values;
      for (const Metric<Stats>& metric : table) {
        values.push_back(
            std::visit([&](auto member) { return MetricNumber(stats.*member); }, metric.value));
      }
      return values;
    });
  }

  // In the order of registration. Values of one struct are read together, different structs one
  // after the other.
  std::vector<MetricSample> Snapshot() const;

 private:
  struct Source {
    std::vector<const MetricInfo*> infos;
    std::shared_ptr<const MetricPlace> place;
    std::function<std::vector<MetricNumber>()> read;
  };
  struct Family {
    const MetricInfo* info = nullptr;
    std::vector<std::string> label_names;  // sorted
    std::set<MetricLabels> places;         // sorted by label
  };

  absl::Status Add(std::vector<const MetricInfo*> infos, MetricPlace place,
                   std::function<std::vector<MetricNumber>()> read);
  absl::Status Check(const MetricInfo& info, const MetricLabels& sorted) const;

  std::vector<Source> sources_;
  std::map<std::string_view, Family> families_;
};

// The text exposition format of Prometheus, version 0.0.4: "dmakit_" before each name, "_total"
// behind a counter's. Bytes of labels that are no UTF-8 become U+FFFD.
std::string PrometheusText(std::span<const MetricSample> samples);
// The name under which PrometheusText has it.
std::string PrometheusName(const MetricInfo& info);

// One heading per set of labels, and below it what "ethtool -S" would print.
std::string PlainText(std::span<const MetricSample> samples);

}  // namespace dmakit::nic

#endif  // DMAKIT_NIC_METRICS_H_
