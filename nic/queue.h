// SPDX-License-Identifier: Apache-2.0
//
// The seams of a datapath, as concepts: what a backend's queues offer to an application, and what a
// queue needs from the memory side. Drivers are templates over the latter, so that another strategy
// (the sources' "before") is another argument and not a branch. No virtual call here; the
// type-erased form is Port.
//
// One queue is used by one thread at a time. Nothing here allocates, locks, logs or returns Status.
#ifndef DMAKIT_NIC_QUEUE_H_
#define DMAKIT_NIC_QUEUE_H_

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

#include "dma/observer.h"
#include "frag/page.h"
#include "iova/types.h"
#include "nic/packet.h"

namespace dmakit::nic {

// Receive fills up to burst.size() packets and returns how many. It also refills the ring, whether
// or not a packet came: refill never depends on arrival.
template <typename Q>
concept RxQueue = requires(Q queue, std::span<Packet> burst) {
  { queue.Receive(burst) } -> std::same_as<size_t>;
};

// Transmit takes packets from the front of the burst and returns how many; the rest stay the
// caller's (the ring is full). A packet the device can never send is *taken*, released and counted
// as dropped, so a caller's retry loop ends. Reap releases what the device has finished and returns
// how many packets that was; Transmit does so itself when it needs room.
template <typename Q>
concept TxQueue = requires(Q queue, std::span<Packet> burst) {
  { queue.Transmit(burst) } -> std::same_as<size_t>;
  { queue.Reap() } -> std::same_as<size_t>;
};

// One receive buffer, from when it is taken until it is handed on in a packet or put back. `token`
// is the source's own.
struct RxBuffer {
  frag::Page* page = nullptr;
  uint32_t offset = 0;    // where the device starts to write, in the page (behind the headroom)
  uint32_t capacity = 0;  // bytes the device may write
  Iova iova{0};
  uint64_t token = 0;
};

// Where receive buffers come from. Take fails (false) when there is none now: the ring stays short
// and asks again at the next Receive. OnReceived runs when the device has finished with a buffer
// and before the CPU looks at it; `length` is what the device wrote. Put takes back a buffer that
// no packet carries.
template <typename S>
concept RxBufferSource = requires(S source, RxBuffer& out, const RxBuffer& buffer,
                                  uint32_t length) {
  { source.Take(out) } -> std::same_as<bool>;
  { source.OnReceived(buffer, length) } -> std::same_as<void>;
  { source.Put(buffer) } -> std::same_as<void>;
};

// What is free on both sides of every buffer of a source while it is posted, for checkers. A source
// says so by a member red_zones(); none is no bytes.
template <typename S>
dma::RedZones RedZonesOf(const S& source) {
  if constexpr (requires { source.red_zones(); }) {
    return source.red_zones();
  } else {
    return {};
  }
}

// How a segment that is to be sent becomes an address the device can use, and what that leaves to
// be undone. Address returns false when it cannot (the packet is then dropped and counted). Done
// runs once per successful Address, after the device has finished.
template <typename A>
concept TxAddressing = requires(A addressing, const Segment& segment, Iova& out, uint64_t& token) {
  { addressing.Address(segment, out, token) } -> std::same_as<bool>;
  { addressing.Done(segment, token) } -> std::same_as<void>;
};

// The default: packet pages are mapped for every device of the space for as long as they are in
// circulation.
struct PageAddressing {
  bool Address(const Segment& segment, Iova& out, uint64_t& token) {
    out = segment.iova();
    token = 0;
    return true;
  }
  void Done(const Segment&, uint64_t) {}
};
static_assert(TxAddressing<PageAddressing>);

}  // namespace dmakit::nic

#endif  // DMAKIT_NIC_QUEUE_H_
