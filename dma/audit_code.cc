// SPDX-License-Identifier: Apache-2.0
//
// The words for each class. Pure functions.
#include "dma/audit_code.h"

#include <array>
#include <cstddef>

namespace dmakit::dma {

namespace {

struct Words {
  const char* name;
  const char* remedy;
};

// By number; 0 is no code.
constexpr std::array<Words, kAuditCodes + 1> kWords = {{
    {"none", ""},
    {"error-address", "Ask IsError after each map, and do not unmap what was not mapped."},
    {"nothing-mapped", "Unmap each mapping once, with the address that the map returned."},
    {"wrong-size", "Unmap with the size that was mapped; keep it beside the address."},
    {"wrong-family", "End a mapping with the call that belongs to the one that made it."},
    {"wrong-cpu-address", "Free a block with the CPU address that came with its device address."},
    {"wrong-entry-count",
     "Unmap a list with the number of entries passed to the map, not of the segments made."},
    {"wrong-direction", "Unmap, and post, with the direction that was mapped."},
    {"map-unchecked", "Ask IsError before the address goes into a descriptor."},
    {"on-stack", "Map memory that outlives the call: from a pool, a ring or the heap."},
    {"program-memory", "Copy constants into DMA memory first."},
    {"not-memory", "Check the pointer: nothing is mapped there, or no longer."},
    {"not-reachable", "Register or pin the memory with the domain before it is mapped."},
    {"segment-too-long", "Cut the buffer into segments of at most DeviceOptions::max_segment."},
    {"segment-crosses-boundary",
     "Map the buffer as a list, which is cut at DeviceOptions::segment_boundary."},
    {"shared-cache-line",
     "Give each buffer that the device writes cache lines of its own (align to 64 bytes)."},
    {"cache-line-mapped-often", "Look for an unmap that is missing on an error path."},
    {"sync-nothing-mapped", "Sync only what is mapped, before its unmap."},
    {"sync-beyond-mapping", "Sync at most the bytes that were mapped."},
    {"sync-wrong-direction", "Sync with the direction that was mapped."},
    {"sync-for-cpu-of-to-device",
     "There is nothing to fetch: write the bytes, then sync for the device."},
    {"sync-for-device-of-from-device",
     "Sync for the device only to give back what a sync for the CPU took."},
    {"sync-wrong-entry-count", "Sync a list with the number of entries passed to the map."},
    {"leaked", "Unmap all of this owner's mappings before the device is detached."},
    {"sync-wrong-owner", "For the CPU first, then for the device, each once per transfer."},
    {"cpu-access", "Keep away from the bytes until the transfer is done and synced for the CPU."},
    {"access-after-unmap",
     "Unmap only when the device has completed the transfer; stop or reset it before teardown."},
    {"wrote-outside",
     "Check the length in the descriptor against the buffer; the device, or what it was told, is "
     "wrong."},
    {"reused-while-posted",
     "Release or unmap a buffer only after the ring has completed it, or the device was reset."},
    {"bad-release", "Release each fragment once, to the pool that its page is from."},
    {"budget-nearly-used",
     "Map larger pieces, unmap what is not needed, or raise the domain's limit of mappings."},
    {"reference-count", "Release as many references of a page as were taken."},
}};

}  // namespace

std::string_view Name(AuditCode code) {
  const auto number = static_cast<size_t>(code);
  return number < kWords.size() ? kWords[number].name : "unknown";
}

std::string_view Remedy(AuditCode code) {
  const auto number = static_cast<size_t>(code);
  return number < kWords.size() ? kWords[number].remedy : "";
}

}  // namespace dmakit::dma
