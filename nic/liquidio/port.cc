// SPDX-License-Identifier: Apache-2.0

#include "nic/liquidio/port.h"

namespace dmakit::nic {

template class FragPort<liquidio::PortTraits>;

}  // namespace dmakit::nic
