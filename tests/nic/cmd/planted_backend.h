// SPDX-License-Identifier: Apache-2.0
//
// PlantedBackend: the enic driver and model with memory strategies that make one mistake, for tests
// of what an audit says about a driver. Receive copies out of buffers that are mapped once and
// synced; transmit maps every segment and unmaps it when it is sent. Without a fault both are
// correct. The key fault=NAME plants one, in the 20th buffer or segment:
//
//   missing-sync      (in)  the CPU reads what it did not sync before
//   recycle           (in)  a page goes back to its pool while it is posted
//   early-free        (out) a segment is unmapped before it is posted
//   unmap-posted      (out) a segment is unmapped before the device has sent it
//   wrong-length      (out) a segment is unmapped with a byte too few
//   changed           (out) the CPU writes to a segment that the device has
//
// Single-threaded.
#ifndef DMAKIT_TESTS_NIC_CMD_PLANTED_BACKEND_H_
#define DMAKIT_TESTS_NIC_CMD_PLANTED_BACKEND_H_

#include <memory>

#include "nic/backend.h"

namespace dmakit::nic::testing {

std::unique_ptr<Backend> NewPlantedBackend();

}  // namespace dmakit::nic::testing

#endif  // DMAKIT_TESTS_NIC_CMD_PLANTED_BACKEND_H_
