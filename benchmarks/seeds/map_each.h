// SPDX-License-Identifier: Apache-2.0
//
// MapEach: receive buffers as a driver has them that maps each one when it is posted and unmaps it
// when it has come back: two calls to the IOMMU's driver a packet. For comparison only.
//
// One thread. The device outlives it; so do the buffers of the source inside.
#ifndef DMAKIT_BENCHMARKS_SEEDS_MAP_EACH_H_
#define DMAKIT_BENCHMARKS_SEEDS_MAP_EACH_H_

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "dma/device.h"
#include "dma/mapping.h"
#include "nic/frag_source.h"
#include "nic/queue.h"

namespace dmakit::seeds {

class MapEach {
 public:
  MapEach(nic::FragSource source, dma::Device& device)
      : source_(std::move(source)), device_(&device) {}

  bool Take(nic::RxBuffer& out) {
    if (!source_.Take(out)) return false;
    auto mapping = device_->Map(std::span(out.page->base + out.offset, out.capacity),
                                dma::Direction::kFromDevice, {.owner = "receive buffer"});
    if (!mapping.ok()) {
      source_.Put(out);
      return false;
    }
    if (free_.empty()) {
      free_.push_back(mappings_.size());
      mappings_.emplace_back();
    }
    out.token = free_.back();
    free_.pop_back();
    out.iova = mapping->iova();
    mappings_[out.token] = *std::move(mapping);
    return true;
  }
  void OnReceived(const nic::RxBuffer& buffer, uint32_t) { Unmap(buffer); }
  void Put(const nic::RxBuffer& buffer) {
    Unmap(buffer);
    source_.Put(buffer);
  }

  nic::FragSource& inner() { return source_; }
  // Unmaps that failed: those ranges are in quarantine.
  uint64_t failures() const { return failures_; }

 private:
  void Unmap(const nic::RxBuffer& buffer) {
    if (!device_->Unmap(std::move(mappings_[buffer.token])).ok()) ++failures_;
    free_.push_back(buffer.token);
  }

  nic::FragSource source_;
  dma::Device* device_;
  std::vector<dma::Mapping> mappings_;
  std::vector<uint64_t> free_;
  uint64_t failures_ = 0;
};
static_assert(nic::RxBufferSource<MapEach>);

}  // namespace dmakit::seeds

#endif  // DMAKIT_BENCHMARKS_SEEDS_MAP_EACH_H_
