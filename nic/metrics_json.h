// SPDX-License-Identifier: Apache-2.0
//
// Metrics as JSON: each value under its key, in the object its place names. In a target of its own,
// because nothing else below nic/cmd needs a JSON library. Pure function, any thread.
#ifndef DMAKIT_NIC_METRICS_JSON_H_
#define DMAKIT_NIC_METRICS_JSON_H_

#include <span>

#include "nic/metrics.h"
#include "nlohmann/json_fwd.hpp"

namespace dmakit::nic {

// Objects that are not in `document` yet are made; what is there and has another key stays.
void AddJson(std::span<const MetricSample> samples, nlohmann::ordered_json& document);

}  // namespace dmakit::nic

#endif  // DMAKIT_NIC_METRICS_JSON_H_
