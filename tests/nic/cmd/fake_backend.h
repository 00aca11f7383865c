// SPDX-License-Identifier: Apache-2.0
//
// FakeBackend: a NIC without descriptors, for tests of what stands on top of one. Memory is real
// (page pools, a software IOMMU, frames copied by IOVA); port and device are one object. It can be
// told to misbehave, by key:
//
//   drop=N  twice=N  corrupt=N   every N-th frame it sends is dropped, sent twice, or changed
//   stall=N                      after N sent frames nothing is finished any more
//   fault=N                      every N-th frame it receives also writes where nothing is mapped
//   room=N                       its transmit ring has room for N packets only
//   violate=1  leak=1  stop=1    records a violation; leaves a mapping; Stop returns an error
//
// Rings have 2 to 4096 buffers. Single-threaded.
#ifndef DMAKIT_TESTS_NIC_CMD_FAKE_BACKEND_H_
#define DMAKIT_TESTS_NIC_CMD_FAKE_BACKEND_H_

#include <map>
#include <memory>
#include <string>

#include "nic/backend.h"

namespace dmakit::nic::testing {

// `keys` hold for every NIC, before those it is created with.
std::unique_ptr<Backend> NewFakeBackend(std::map<std::string, std::string> keys = {});

}  // namespace dmakit::nic::testing

#endif  // DMAKIT_TESTS_NIC_CMD_FAKE_BACKEND_H_
