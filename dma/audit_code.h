// SPDX-License-Identifier: Apache-2.0
//
// The classes of mistakes that the audit reports. The numbers are part of the interface: they stand
// in reports and documents. Up to 23 they are those that Linux's DMA debugging knows. Plain values,
// any thread.
#ifndef DMAKIT_DMA_AUDIT_CODE_H_
#define DMAKIT_DMA_AUDIT_CODE_H_

#include <cstdint>
#include <string_view>

namespace dmakit::dma {

enum class AuditCode : uint8_t {
  // On unmap or free.
  kErrorAddress = 1,     // the address is the error value of a failed map
  kNothingMapped = 2,    // nothing of this device is live there: a second unmap, a wrong address,
                         // also one that is posted to a ring
  kWrongSize = 3,        // not the size that was mapped
  kWrongFamily = 4,      // mapped as single, list, coherent or resource; unmapped as another
  kWrongCpuAddress = 5,  // a coherent block freed with the CPU address of something else
  kWrongEntryCount = 6,  // a list unmapped with another number of entries
  kWrongDirection = 7,   // not the direction it was mapped with
  kMapUnchecked = 8,     // nobody asked whether the map had failed
  // On map.
  kOnStack = 9,                  // the buffer is on a stack
  kProgramMemory = 10,           // the buffer is program text or read-only data
  kNotMemory = 11,               // no memory is mapped at the address
  kNotReachable = 12,            // the domain wants memory registered or pinned; this is not
  kSegmentTooLong = 13,          // longer than the device's maximum
  kSegmentCrossesBoundary = 14,  // crosses the device's segment boundary
  kSharedCacheLine = 15,         // shares a cache line with a live mapping that the device writes
  kCacheLineMappedOften = 16,    // one cache line in many live mappings: a hint at a leak
  // On sync.
  kSyncNothingMapped = 17,          // nothing live contains the range
  kSyncBeyondMapping = 18,          // the range runs beyond its mapping
  kSyncWrongDirection = 19,         // not the direction of the mapping
  kSyncForCpuOfToDevice = 20,       // for the CPU, but the device only reads there
  kSyncForDeviceOfFromDevice = 21,  // for the device, which only writes there and has it already
  kSyncWrongEntryCount = 22,        // a list with another number of entries
  // On detach.
  kLeaked = 23,  // mappings still live; one report per owner
  // Beyond Linux's.
  kSyncWrongOwner = 24,     // handed over to the side that has it already
  kCpuAccess = 25,          // the CPU used the bytes while the device had them
  kAccessAfterUnmap = 26,   // the device used a range after its unmap, or was told to
  kWroteOutside = 27,       // the device wrote beside the bytes it was given
  kReusedWhilePosted = 28,  // page recycled, or mapping ended, while posted to a ring
  kBadRelease = 29,         // fragment released twice, or to a pool that it is not from
  kBudgetNearlyUsed = 30,   // the domain allows few more mappings
  kReferenceCount = 31,     // a page's references below zero or above their bound
};

inline constexpr int kAuditCodes = 31;

std::string_view Name(AuditCode code);    // "wrong-size"
std::string_view Remedy(AuditCode code);  // what to do about it, a sentence
// A hint (16 and 30), not a mistake that is certain.
constexpr bool IsWarning(AuditCode code) {
  return code == AuditCode::kCacheLineMappedOften || code == AuditCode::kBudgetNearlyUsed;
}

}  // namespace dmakit::dma

#endif  // DMAKIT_DMA_AUDIT_CODE_H_
