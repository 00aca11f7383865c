// SPDX-License-Identifier: Apache-2.0
//
// One transmit queue of a backend on its model, with packets made to measure and an addressing that
// counts. RigT is the backend's NicRig, Kit what nic_rig.h says and also `TxDriver`, a driver over
// FragSource and CountingAddressing, and `TxOptions(ring, mtu)`, its options.
#ifndef DMAKIT_TESTS_NIC_TX_RIG_H_
#define DMAKIT_TESTS_NIC_TX_RIG_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "frag/frag_allocator.h"
#include "nic/queue.h"
#include "tests/nic/nic_rig.h"

namespace dmakit::nic {

// Counts, and fails when told to.
struct CountingAddressing {
  struct State {
    std::map<uint64_t, int> open;  // token -> not yet Done
    uint64_t addressed = 0;
    uint64_t done = 0;
    uint64_t fail_at = 0;  // the n-th Address from now fails
    uint64_t wrong = 0;    // Done without Address, or twice
  };
  State* state;

  bool Address(const Segment& segment, Iova& out, uint64_t& token) {
    if (state->fail_at != 0 && --state->fail_at == 0) return false;
    out = segment.iova();
    token = ++state->addressed;
    ++state->open[token];
    return true;
  }
  void Done(const Segment&, uint64_t token) {
    ++state->done;
    if (state->open.erase(token) == 0) ++state->wrong;
  }
};

// One transmit queue on a model, and a pool its packets come from.
template <typename RigT, typename Kit>
struct NicTxRig : RigT {
  NicTxRig(uint32_t ring, uint32_t mtu, typename RigT::Options options = {})
      : RigT(std::move(options)) {
    REQUIRE(this->MakeSpace().ok());
    device =
        this->space->Attach({.name = Kit::kName, .domain = &this->domain, .waiter = &this->waiter})
            .value();
    pool = frag::PagePool::Create(*this->space, {.label = "tx", .order = 4}).value();
    fragments.emplace(frag::FragAllocator::Create(*pool, {.size = 64}).value());
    driver =
        Kit::TxDriver::Create(*device, this->registers(), Kit::TxOptions(ring, mtu), {}, {{&state}})
            .value();
    REQUIRE(driver->Start().ok());
    tx().SetOwner(pool.get());
  }
  ~NicTxRig() {
    driver.reset();
    fragments.reset();
    pool.reset();
    device.reset();
  }
  auto& tx() { return driver->tx(0); }
  TxQueueStats stats() { return driver->tx_stats(0); }

  // A packet of segments of these lengths, filled with a running pattern.
  Packet Make(const std::vector<uint32_t>& lengths) {
    Packet packet;
    packet.segment_count = 0;
    packet.length = 0;
    packet.tx = TxFlags::kNone;
    for (const uint32_t length : lengths) {
      const frag::Fragment f = fragments->AllocateSize(std::max(length, 1u));
      REQUIRE_FALSE(f.empty());
      for (uint32_t i = 0; i < length; ++i) f.data()[i] = static_cast<std::byte>(pattern++);
      REQUIRE(packet.Append({f.page, f.offset, length}));
    }
    return packet;
  }
  // `bytes` as a packet of segments of these lengths, the last of which gets the rest.
  Packet Carry(const Frame& bytes, const std::vector<uint32_t>& lengths = {}) {
    Packet packet;
    packet.segment_count = 0;
    packet.length = 0;
    packet.tx = TxFlags::kNone;
    for (size_t at = 0, i = 0; at < bytes.size(); ++i) {
      const size_t rest = bytes.size() - at;
      const size_t length = i < lengths.size() ? std::min<size_t>(lengths[i], rest) : rest;
      const frag::Fragment f = fragments->AllocateSize(static_cast<uint32_t>(length));
      REQUIRE_FALSE(f.empty());
      std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(at), length, f.data());
      REQUIRE(packet.Append({f.page, f.offset, static_cast<uint32_t>(length)}));
      at += length;
    }
    return packet;
  }
  size_t Send(Packet& packet) { return tx().Transmit({&packet, 1}); }
  // No page of the pool is held by anybody else.
  void CheckAllReturned() {
    fragments.reset();
    pool->Fold();
    CHECK(pool->pages_in_use() == 0);
    CHECK(pool->stats().bad_releases == 0);
    CHECK(state.open.empty());
    CHECK(state.wrong == 0);
    CHECK(state.addressed == state.done);
    fragments.emplace(frag::FragAllocator::Create(*pool, {.size = 64}).value());
  }

  std::unique_ptr<dma::Device> device;
  std::unique_ptr<frag::PagePool> pool;
  std::optional<frag::FragAllocator> fragments;
  CountingAddressing::State state;
  std::unique_ptr<typename Kit::TxDriver> driver;
  uint32_t pattern = 0;
};

}  // namespace dmakit::nic

#endif  // DMAKIT_TESTS_NIC_TX_RIG_H_
