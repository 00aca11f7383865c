// SPDX-License-Identifier: Apache-2.0

#include "nic/enic/port.h"

namespace dmakit::nic {

template class FragPort<enic::PortTraits>;

}  // namespace dmakit::nic
