// SPDX-License-Identifier: Apache-2.0
//
// Internal: tracepoints for perf, bpftrace and SystemTap, named after the kernel's DMA events:
//
//   bpftrace -e 'usdt:./program:dmakit:dma_map { printf("%s %x %d\n", str(arg0), arg1, arg2); }'
//
//   dma_map, dma_unmap            one buffer, or registers of another device
//   dma_map_sg, dma_unmap_sg      a list, as one range
//   dma_alloc, dma_free           coherent memory
//   dma_sync_single_for_cpu, dma_sync_single_for_device
//
// Arguments: device name, IOVA, bytes, direction (0 both ways, 1 to the device, 2 from it, as in
// the kernel). A probe that nobody watches is one nop. Syncs that do nothing, because the device is
// coherent and nobody checks, have none; nor have packet pages, which belong to no one device. In a
// build without <sys/sdt.h> all of it is nothing. Any thread.
//
// Out of line: the notes that describe a probe refer to its function, so that one must be there in
// every program, whatever else its linker leaves out.
#ifndef DMAKIT_DMA_PROBES_H_
#define DMAKIT_DMA_PROBES_H_

#include <string>

#include "dma/observer.h"
#include "dma/types.h"

namespace dmakit::dma::internal {

#if defined(DMAKIT_USDT)
void ProbeMap(MappingKind kind, const std::string& device, const Range& range, Direction direction);
void ProbeUnmap(MappingKind kind, const std::string& device, const Range& range,
                Direction direction);
void ProbeSync(bool for_cpu, const std::string& device, const Range& range, Direction direction);
#else
inline void ProbeMap(MappingKind, const std::string&, const Range&, Direction) {}
inline void ProbeUnmap(MappingKind, const std::string&, const Range&, Direction) {}
inline void ProbeSync(bool, const std::string&, const Range&, Direction) {}
#endif

}  // namespace dmakit::dma::internal

#endif  // DMAKIT_DMA_PROBES_H_
