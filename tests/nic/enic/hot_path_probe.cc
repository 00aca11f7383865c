// SPDX-License-Identifier: Apache-2.0
//
// Functions whose machine code hot_path_test.cc reads. The first group is the datapath of the
// default driver; the second shows that the reader would find what must not be there.
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "nic/enic/driver.h"
#include "nic/frag_source.h"
#include "nic/packet.h"

#define PROBE extern "C" [[gnu::noinline]]

using namespace dmakit::nic;  // NOLINT: a probe

PROBE size_t probe_receive(enic::RxQueue<FragSource>& queue, std::span<Packet> burst) {
  return queue.Receive(burst);
}
PROBE size_t probe_transmit(enic::TxQueue<PageAddressing>& queue, std::span<Packet> burst) {
  return queue.Transmit(burst);
}
PROBE size_t probe_reap(enic::TxQueue<PageAddressing>& queue) { return queue.Reap(); }

PROBE void control_add(std::atomic<uint32_t>& word) {
  word.fetch_add(1, std::memory_order_relaxed);
}
PROBE void control_seq_cst_store(std::atomic<uint32_t>& word) { word.store(1); }
#if defined(__x86_64__)
PROBE void control_fence() { asm volatile("mfence" ::: "memory"); }
#else
PROBE void control_fence() {}
#endif
PROBE int* control_allocation() { return new int(7); }
PROBE size_t control_status(size_t n) {
  return absl::InternalError("never on a datapath").message().size() + n;
}
struct Interface {
  virtual ~Interface() = default;
  virtual int Call(int n) = 0;
};
PROBE int control_virtual(Interface& object, int n) {
  int sum = 0;
  for (int i = 0; i < n; ++i) sum += object.Call(i);
  return sum;
}
PROBE int control_hidden(Interface& object, std::atomic<uint32_t>& word) {
  control_add(word);
  return control_virtual(object, 3) + 1;
}

// Or the linker would drop them.
int main() {
  const void* volatile keep = nullptr;
  for (auto* function :
       {reinterpret_cast<void (*)()>(probe_receive), reinterpret_cast<void (*)()>(probe_transmit),
        reinterpret_cast<void (*)()>(probe_reap), reinterpret_cast<void (*)()>(control_add),
        reinterpret_cast<void (*)()>(control_seq_cst_store),
        reinterpret_cast<void (*)()>(control_fence),
        reinterpret_cast<void (*)()>(control_allocation),
        reinterpret_cast<void (*)()>(control_status), reinterpret_cast<void (*)()>(control_virtual),
        reinterpret_cast<void (*)()>(control_hidden)}) {
    keep = reinterpret_cast<const void*>(function);
  }
  return keep == nullptr;
}
