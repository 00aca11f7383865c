// SPDX-License-Identifier: Apache-2.0

#include "nic/metrics_json.h"

#include <string>
#include <variant>

#include "nlohmann/json.hpp"

namespace dmakit::nic {

void AddJson(std::span<const MetricSample> samples, nlohmann::ordered_json& document) {
  for (const MetricSample& sample : samples) {
    if (!sample.place->json) continue;
    auto& object = document[nlohmann::ordered_json::json_pointer(*sample.place->json)];
    std::visit([&](auto value) { object[std::string(sample.info->key)] = value; }, sample.value);
  }
}

}  // namespace dmakit::nic
