// SPDX-License-Identifier: Apache-2.0

#include "nic/e1000e/port.h"

namespace dmakit::nic {

template class FragPort<e1000e::PortTraits>;

}  // namespace dmakit::nic
