// SPDX-License-Identifier: Apache-2.0
//
// driver: the dmakit command line for e1000e alone.

#include "nic/backend.h"
#include "nic/cmd/command.h"
#include "nic/e1000e/backend.h"

int main(int argc, char** argv) {
  dmakit::nic::BackendRegistry registry;
  registry.Register(dmakit::nic::e1000e::NewBackend());
  return dmakit::nic::cmd::RunMain(argc, argv, registry);
}
