// SPDX-License-Identifier: Apache-2.0
//
// Pair: the two e1000e of a guest (see boot.sh) as two ports of one address space, and memory to
// send from. Its tests run as root in the guest, one at a time, and find the NICs bound to
// vfio-pci. One thread.
#ifndef DMAKIT_TESTS_QEMU_PAIR_H_
#define DMAKIT_TESTS_QEMU_PAIR_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dma/address_space.h"
#include "dma/audit.h"
#include "dma/host/clock.h"
#include "dma/host/fence.h"
#include "dma/host/host_memory.h"
#include "dma/host/vfio_kernel.h"
#include "frag/frag_allocator.h"
#include "frag/page_pool.h"
#include "nic/backend.h"
#include "nic/e1000e/backend.h"
#include "nic/packet.h"
#include "nic/port.h"
#include "tests/qemu/guest.h"

namespace dmakit::qemu {

using Frame = std::vector<std::byte>;

// An address space on the guest's memory, and what sends from it.
class Memory {
 public:
  explicit Memory(dma::Policy policy, dma::Audit* audit = nullptr) {
    host_ = Need(dma::host::HostMemory::Create({}));
    dma::AddressSpace::Options options;
    options.memory = host_.get();
    options.threads = &threads_;
    options.fence = &fence_;
    options.policy = policy;
    if (audit != nullptr) {
      options.on_attach = [audit](dma::Device& device) { return audit->Attach(device); };
    }
    space_ = Need(dma::AddressSpace::Create(std::move(options)));
  }

  dma::AddressSpace& space() { return *space_; }
  dma::host::HostMemory& host() { return *host_; }

 private:
  dma::host::SystemThreads threads_;
  dma::host::MembarrierFence fence_;
  std::unique_ptr<dma::host::HostMemory> host_;
  std::unique_ptr<dma::AddressSpace> space_;
};

// Packets to send. The address space has its devices.
class Packets {
 public:
  explicit Packets(dma::AddressSpace& space)
      : pool_(Need(frag::PagePool::Create(space, {.label = "to send", .order = 4}))),
        fragments_(Need(frag::FragAllocator::Create(*pool_, {.size = 9216}))) {}

  frag::PagePool& pool() { return *pool_; }
  // A packet of one segment that has these bytes.
  nic::Packet Carry(std::span<const std::byte> bytes) {
    const frag::Fragment f = fragments_.AllocateSize(static_cast<uint32_t>(bytes.size()));
    REQUIRE_FALSE(f.empty());
    std::copy(bytes.begin(), bytes.end(), f.data());
    nic::Packet packet;
    packet.tx = nic::TxFlags::kNone;
    packet.ResetTo({f.page, f.offset, static_cast<uint32_t>(bytes.size())});
    return packet;
  }

 private:
  std::unique_ptr<frag::PagePool> pool_;
  frag::FragAllocator fragments_;
};

// The bytes of a received packet, whose references are given back.
inline Frame TakeBytes(nic::Packet& packet, frag::PagePool& pool) {
  Frame frame;
  for (const nic::Segment& s : packet.parts()) {
    frame.insert(frame.end(), s.data(), s.data() + s.length);
    pool.Release(s.page);
  }
  return frame;
}

class Pair {
 public:
  explicit Pair(const nic::PortOptions& options, bool audited = false,
                dma::Policy policy = dma::Policy::kPersistent)
      : Pair(std::array<nic::PortOptions, 2>{options, options}, audited, policy) {}
  explicit Pair(const std::array<nic::PortOptions, 2>& options, bool audited = false,
                dma::Policy policy = dma::Policy::kPersistent) {
    for (size_t i = 0; i < 2; ++i) {
      nics_[i] = Need(backend_->Create({.name = "e1000e" + std::to_string(i),
                                        .keys = {{"pci", kAddress[i]}},
                                        .threaded = true}));
    }
    if (audited) audit_.emplace();
    memory_.emplace(policy, audited ? &*audit_ : nullptr);
    for (size_t i = 0; i < 2; ++i) ports_[i] = Need(nics_[i]->Open(memory_->space(), options[i]));
    packets_.emplace(memory_->space());
    for (size_t i = 0; i < 2; ++i) {
      ports_[i]->SetTxOwner(0, &packets_->pool());
      const absl::Status started = ports_[i]->Start();
      INFO(started.message());
      REQUIRE(started.ok());
    }
  }
  // Everything came back, nothing is mapped, the IOMMU had nothing to refuse.
  ~Pair() {
    for (auto& port : ports_) {
      const absl::Status stopped = port->Stop();
      INFO(stopped.message());
      CHECK(stopped.ok());
    }
    packets_->pool().Fold();
    packets_.reset();
    for (auto& port : ports_) port.reset();
    for (auto& nic : nics_) {
      const nic::Nic::Faults faults = nic->CollectFaults();
      INFO((faults.words.empty() ? "" : faults.words[0]));
      CHECK(faults.count == 0);
    }
    if (audit_) {
      INFO(audit_->Text());
      CHECK(audit_->errors() == 0);
    }
    CHECK(memory_->space().quarantine().count() == 0);
    memory_.reset();
    for (auto& nic : nics_) CHECK(nic->domain().stats().live_mappings == 0);
  }

  nic::Port& port(size_t i) { return *ports_[i]; }
  nic::Nic& nic(size_t i) { return *nics_[i]; }
  Packets& packets() { return *packets_; }
  dma::host::SystemVfioKernel& kernel() { return kernel_; }

 private:
  dma::host::SystemVfioKernel kernel_;
  std::unique_ptr<nic::Backend> backend_ = nic::e1000e::NewBackend(&kernel_);
  std::array<std::unique_ptr<nic::Nic>, 2> nics_;
  std::optional<dma::Audit> audit_;
  std::optional<Memory> memory_;
  std::array<std::unique_ptr<nic::Port>, 2> ports_;
  std::optional<Packets> packets_;
};

}  // namespace dmakit::qemu

#endif  // DMAKIT_TESTS_QEMU_PAIR_H_
