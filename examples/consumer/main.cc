// SPDX-License-Identifier: Apache-2.0
//
// Where a driver of your own starts: a device behind an IOMMU, a ring it shares with the CPU, a
// pool of packet pages, and one buffer that goes to the device and comes back. The "device" is ten
// lines at the end; everything above it is what a driver for silicon does too, with a VFIO domain
// in the place of SoftwareIommu.

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dma/address_space.h"
#include "dma/device_port.h"
#include "dma/host/host_memory.h"
#include "dma/ring_pool.h"
#include "dma/shared.h"
#include "dma/software_iommu.h"
#include "frag/frag_allocator.h"
#include "frag/page_pool.h"

namespace {

using dmakit::Bytes;
using dmakit::Iova;

// One descriptor: where the buffer is, how long, and whose it is. The device owns it while `owner`
// is 1, so that word is written last.
struct Descriptor {
  dmakit::dma::SharedLe64 address;
  dmakit::dma::SharedLe32 length;
  dmakit::dma::SharedLe32 owner;
};
static_assert(sizeof(Descriptor) == 16);

// What silicon would do: read the descriptor, turn the buffer's letters into capitals, give both
// back. It has IOVAs and a port, and no pointer.
bool DeviceStep(dmakit::dma::DevicePort& port, Iova descriptor) {
  const auto owner = port.LoadAcquire(descriptor + Bytes(12), 4);
  const auto address = port.LoadAcquire(descriptor, 8);
  const auto length = port.LoadAcquire(descriptor + Bytes(8), 4);
  char text[64];
  if (!owner || *owner != 1 || !address || !length || *length > sizeof text) return false;
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(text)).first(*length);
  if (!port.Read(Iova(*address), bytes)) return false;
  for (std::byte& b : bytes) {
    if (b >= std::byte{'a'} && b <= std::byte{'z'}) b ^= std::byte{0x20};
  }
  return port.Write(Iova(*address), bytes) && port.Publish(descriptor + Bytes(12), 0, 4);
}

absl::Status Run() {
  // The order of construction is the order of lifetimes: memory and domain outlive the address
  // space, which outlives its devices, rings and pools.
  auto memory = dmakit::dma::host::HostMemory::Create({});
  if (!memory.ok()) return memory.status();
  auto iommu = dmakit::dma::SoftwareIommu::Create({.name = "iommu0"});
  if (!iommu.ok()) return iommu.status();
  const auto port = (*iommu)->NewPort("my-nic");

  auto space = dmakit::dma::AddressSpace::Create({.memory = memory->get()});
  if (!space.ok()) return space.status();
  auto device = (*space)->Attach({.name = "my-nic", .domain = iommu->get()});
  if (!device.ok()) return device.status();

  // Set-up: the ring is mapped once for all its entries, a page once for all its fragments.
  auto ring = dmakit::dma::RingPool<Descriptor>::Create(**device, {.count = 64, .label = "ring0"});
  if (!ring.ok()) return ring.status();
  auto pool = dmakit::frag::PagePool::Create(**space, {.label = "ring0"});
  if (!pool.ok()) return pool.status();
  auto buffers = dmakit::frag::FragAllocator::Create(**pool, {.size = 2048});
  if (!buffers.ok()) return buffers.status();

  // The datapath: a buffer, a descriptor, and the hand-over. No map, no lock, no Status.
  constexpr std::string_view kText = "moved by iova";
  const dmakit::frag::Fragment buffer = buffers->Allocate();
  if (buffer.empty()) return absl::ResourceExhaustedError("no page for a buffer");
  std::memcpy(buffer.data(), kText.data(), kText.size());
  Descriptor* descriptor = ring->at(0);
  descriptor->address.Store(buffer.iova().value());
  descriptor->length.Store(kText.size());
  descriptor->owner.StoreRelease(1);

  if (!DeviceStep(*port, ring->iova(0))) return absl::InternalError("the device faulted");
  if (descriptor->owner.LoadAcquire() != 0) return absl::InternalError("never given back");
  const std::string_view result(reinterpret_cast<const char*>(buffer.data()), kText.size());
  std::printf("device sent back: %.*s\n", static_cast<int>(result.size()), result.data());
  (*pool)->Release(buffer);

  const auto walks = (*iommu)->walk_stats();
  std::printf("IOMMU: %llu maps, %llu walks, %llu faults\n",
              static_cast<unsigned long long>((*iommu)->stats().maps),
              static_cast<unsigned long long>(walks.walks),
              static_cast<unsigned long long>(walks.faults));
  if (result != "MOVED BY IOVA") return absl::DataLossError("not what was sent");
  return walks.faults == 0 ? absl::OkStatus() : absl::InternalError("faults");
}

}  // namespace

int main() {
  const absl::Status status = Run();
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
