// SPDX-License-Identifier: Apache-2.0
//
// Functions whose machine code hot_path_test.cc reads: the datapath of the default driver.
#include <cstddef>
#include <span>

#include "nic/frag_source.h"
#include "nic/liquidio/driver.h"
#include "nic/packet.h"

#define PROBE extern "C" [[gnu::noinline]]

using namespace dmakit::nic;  // NOLINT: a probe

PROBE size_t probe_receive(liquidio::RxQueue<FragSource>& queue, std::span<Packet> burst) {
  return queue.Receive(burst);
}
PROBE size_t probe_transmit(liquidio::TxQueue<PageAddressing>& queue, std::span<Packet> burst) {
  return queue.Transmit(burst);
}
PROBE size_t probe_reap(liquidio::TxQueue<PageAddressing>& queue) { return queue.Reap(); }

// Or the linker would drop them.
int main() {
  const void* volatile keep = nullptr;
  for (auto* function :
       {reinterpret_cast<void (*)()>(probe_receive), reinterpret_cast<void (*)()>(probe_transmit),
        reinterpret_cast<void (*)()>(probe_reap)}) {
    keep = reinterpret_cast<const void*>(function);
  }
  return keep == nullptr;
}
