// SPDX-License-Identifier: Apache-2.0
//
// Port: the type-erased face of one opened NIC, for programs that choose the backend at run time.
// Set-up and control are ordinary virtual calls; the datapath is one virtual call per burst.
//
// Start and Stop are called by one control thread while no queue call is running. Each queue is
// then used by one thread at a time; different queues by different threads. A port is stopped by
// its destructor.
#ifndef DMAKIT_NIC_PORT_H_
#define DMAKIT_NIC_PORT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "dma/types.h"
#include "frag/page_pool.h"
#include "iova/types.h"
#include "nic/notifier.h"
#include "nic/packet.h"
#include "nic/stats.h"

namespace dmakit::nic {

struct PortOptions {
  uint32_t rx_queues = 1;
  uint32_t tx_queues = 1;
  uint32_t ring_size = 512;  // descriptors per queue; the backend says which sizes are legal
  uint32_t mtu = 9000;       // 68 to 9000 bytes of IP; a frame has 18 more (header, one VLAN tag)
  uint32_t headroom = 64;    // free bytes before a received frame
  std::optional<unsigned>
      page_order{};  // largest page order of receive pools; default: by buffer size
  dma::Policy policy = dma::Policy::kPersistent;
  bool vlan_strip = false;  // the device takes a VLAN tag out of a frame, and tells it
  // Receive queues can wait (Port::Arm), if the device's interrupts are connected.
  bool interrupts = false;
  dma::Nanos coalescing{0};                 // from the first frame to its interrupt, at least
  uint32_t extra_pages = 2;                 // per receive pool, beyond what fills the ring
  dma::Nanos stop_deadline{1'000'000'000};  // how long Stop waits for the device and for packets
};

// Bytes of one receive buffer: MTU + 18 + headroom, rounded up to 64.
constexpr uint32_t RxBufferSize(uint32_t mtu, uint32_t headroom) {
  return (mtu + 18 + headroom + 63) / 64 * 64;
}

class Port {
 public:
  virtual ~Port() = default;
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  virtual std::string_view name() const = 0;
  virtual const PortOptions& options() const = 0;
  virtual uint32_t max_frame() const = 0;  // bytes, without FCS

  // Fills the rings and enables the device. On failure nothing is left running or mapped and it can
  // be tried again.
  virtual absl::Status Start() = 0;
  // Disables the device, waits for what is in flight, releases it. What does not come within the
  // deadline is quarantined and named in the error; the port is stopped all the same. Idempotent.
  // A port that transmits packets of another one's pools is stopped (and destroyed) before that
  // one, which would else wait for them.
  virtual absl::Status Stop() = 0;

  // Changes ring size, MTU, headroom, page order and queue counts; the other options must be as
  // they are. Running or not; by the control thread, while no other call is running. Packets that
  // the application holds stay good. What was received and not asked for comes first afterwards,
  // also what queues held that are no more; what is to be sent is sent before. Frames that arrive
  // meanwhile are the device's to keep or to lose.
  //
  // InvalidArgument or FailedPrecondition: nothing was changed, not even for a moment. Any other
  // error: it could not be done, and the port is as before; or, if that failed too, stopped. The
  // message says which. Unimplemented where the backend cannot.
  virtual absl::Status Reconfigure(const PortOptions& options);
  // The page order alone, under traffic: pages made from now on. Control thread; queues may be in
  // use.
  virtual absl::Status SetPageOrder(unsigned order);

  virtual size_t Receive(uint32_t queue, std::span<Packet> burst) = 0;
  virtual size_t Transmit(uint32_t queue, std::span<Packet> burst) = 0;
  virtual size_t Reap(uint32_t queue) = 0;

  // For a thread that sleeps when there is nothing to receive; notifier.h has the loop. Arm is
  // called by the queue's thread after Receive has returned 0. False: receive again, there may be
  // more (or this port only polls, and has no notifier; or it is stopped). The notifier lives as
  // long as the port. Stop and Reconfigure wake who waits: what was armed before is armed no more.
  virtual bool Arm(uint32_t queue) {
    (void)queue;
    return false;
  }
  virtual Notifier* notifier(uint32_t queue) {
    (void)queue;
    return nullptr;
  }

  // The pool the buffers of a receive queue come from; owner: that queue's thread. Lives as long as
  // the port, also when the queue was taken away.
  virtual frag::PagePool& rx_pool(uint32_t queue) = 0;
  // Says that fragments of `pool` are released by the same thread that uses transmit queue `queue`,
  // so they need no atomics. nullptr (the default): fragments of any pool come back through the
  // shared count. Before Start.
  virtual void SetTxOwner(uint32_t queue, frag::PagePool* pool) = 0;

  virtual PortStats stats() const = 0;

 protected:
  Port() = default;
};

}  // namespace dmakit::nic

#endif  // DMAKIT_NIC_PORT_H_
